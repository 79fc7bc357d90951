//! YAML as the kubelet reads it: version 1.1, in which `yes` is a boolean and 0644 is octal.

use serde_json::Value;

/// Why a text is no YAML of ours.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    /// It cannot be read.
    #[error("it is no YAML of one document: {0}")]
    Read(String),
    /// It would not say the same after it was written.
    #[error("it holds something that cannot be written as it was read")]
    Write,
}

/// Reads one document.
pub fn read(text: &str) -> Result<Value, YamlError> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| YamlError::Read(first_line(&error.to_string())))
}

/// Writes a document. It is read again before anyone sees it.
pub fn write(value: &Value) -> Result<String, YamlError> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let text =
        serde_saphyr::to_string_with_options(value, options).map_err(|_| YamlError::Write)?;
    match read(&text) {
        Ok(again) if again == *value => Ok(text),
        _ => Err(YamlError::Write),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_that_look_like_something_else_stay_texts() {
        let value = json!({
            "texts": ["yes", "on", "null", "0644", "1e3", "12:30", "2026-01-01", "~", "", " a ", "a\nb", "x".repeat(200)],
            "others": [true, null, 420, 1.5, {}, []],
        });
        let text = write(&value).unwrap();
        assert_eq!(read(&text).unwrap(), value, "{text}");
        for word in ["yes", "on", "0644", "12:30"] {
            assert!(!text.contains(&format!("- {word}\n")), "{word} needs quotes: {text}");
        }
    }

    #[test]
    fn numbers_and_booleans_are_the_kubelets() {
        assert_eq!(
            read("a: 0644\nb: yes\nc: 'yes'\n").unwrap(),
            json!({"a": 420, "b": true, "c": "yes"})
        );
    }

    #[test]
    fn two_documents_are_none() {
        assert!(read("a: 1\n---\nb: 2\n").is_err());
        let said = read("a: [").unwrap_err().to_string();
        assert!(said.starts_with("it is no YAML of one document"), "{said}");
    }
}
