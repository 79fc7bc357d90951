//! The forms of an answer.

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::options::Form;

/// `value` as JSON or YAML, if that is wanted.
pub fn structured(value: &impl Serialize, form: Option<Form>) -> anyhow::Result<Option<String>> {
    Ok(match form {
        Some(Form::Json) => Some(format!("{}\n", serde_json::to_string_pretty(value)?)),
        Some(Form::Yaml) => Some(serde_saphyr::to_string(value).context("write YAML")?),
        Some(Form::Wide) | None => None,
    })
}

/// A table as kubectl prints them: a head in capitals, no lines, nothing after the last word.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(head.to_vec());
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_look_like_kubectls() {
        let rows = vec![vec!["gpu-a".into(), "1".into()], vec!["b".into(), "22".into()]];
        assert_eq!(table(&["NODE", "N"], rows), "NODE   N\ngpu-a  1\nb      22\n");
    }

    #[test]
    fn other_forms_are_whole() {
        let value = serde_json::json!({"a": [1, "x: y"]});
        let json = structured(&value, Some(Form::Json)).unwrap().unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
        let yaml = structured(&value, Some(Form::Yaml)).unwrap().unwrap();
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap(), value);
        assert_eq!(structured(&value, None).unwrap(), None);
    }
}
