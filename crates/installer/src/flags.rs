//! The flags of a command line, as kube-scheduler reads them.

use serde_json::{Map, Value, json};

/// The flags that kube-scheduler ignores beside `--config`, and where a configuration says the
/// same. Those of the leader election are not among them: they outrank the configuration.
const CARRIED: [(&str, &[&str], Kind); 6] = [
    ("kubeconfig", &["clientConnection", "kubeconfig"], Kind::Text),
    ("kube-api-content-type", &["clientConnection", "contentType"], Kind::Text),
    ("kube-api-qps", &["clientConnection", "qps"], Kind::Number),
    ("kube-api-burst", &["clientConnection", "burst"], Kind::Number),
    ("profiling", &["enableProfiling"], Kind::Choice),
    ("contention-profiling", &["enableContentionProfiling"], Kind::Choice),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Choice,
}

/// A flag whose value is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--{name}={value} of kube-scheduler cannot be read; mend it in the manifest first")]
pub struct BadFlag {
    name: &'static str,
    value: String,
}

/// The value of `--name`: the last one counts. Without a value it is `true`.
pub fn value(words: &[String], name: &str) -> Option<String> {
    let mut found = None;
    for (index, word) in words.iter().enumerate() {
        let Some(rest) = word.strip_prefix("--").and_then(|word| word.strip_prefix(name)) else {
            continue;
        };
        if let Some(value) = rest.strip_prefix('=') {
            found = Some(value.to_owned());
        } else if rest.is_empty() {
            let next = words.get(index + 1).filter(|next| !next.starts_with("--"));
            found = Some(next.map_or_else(|| "true".to_owned(), Clone::clone));
        }
    }
    found
}

/// The same words with `--name` said once, at the end.
pub fn with(words: &[String], name: &str, value: &str) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let rest = word.strip_prefix("--").and_then(|word| word.strip_prefix(name));
        match rest {
            Some("") => {
                words.next_if(|next| !next.starts_with("--"));
            }
            Some(rest) if rest.starts_with('=') => {}
            _ => kept.push(word.clone()),
        }
    }
    kept.push(format!("--{name}={value}"));
    kept
}

/// What a configuration must say so that nothing these flags said is lost.
pub fn carried(words: &[String]) -> Result<Value, BadFlag> {
    let mut config = json!({});
    for (name, path, kind) in CARRIED {
        let Some(text) = value(words, name) else { continue };
        let bad = || BadFlag { name, value: text.clone() };
        let said = match kind {
            Kind::Text => json!(text),
            Kind::Number => {
                let number: f64 = text.parse().map_err(|_| bad())?;
                // A whole number stays one: burst is an integer.
                text.parse::<i64>().map_or_else(|_| json!(number), |whole| json!(whole))
            }
            // As Go reads a boolean.
            Kind::Choice => match text.as_str() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => json!(true),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => json!(false),
                _ => return Err(bad()),
            },
        };
        put(&mut config, path, said);
    }
    Ok(config)
}

fn put(config: &mut Value, path: &[&str], value: Value) {
    let mut at = config;
    for key in path {
        at = &mut at[*key];
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_flag_has_its_value_behind_an_equals_sign_or_in_the_next_word() {
        let said = words("kube-scheduler --a=1 --b 2 --c --d=3 --a=4 --leader-elect");
        assert_eq!(value(&said, "a").as_deref(), Some("4"), "the last one counts");
        assert_eq!(value(&said, "b").as_deref(), Some("2"));
        assert_eq!(value(&said, "c").as_deref(), Some("true"));
        assert_eq!(value(&said, "leader-elect").as_deref(), Some("true"));
        assert_eq!(value(&said, "leader"), None, "a beginning is another flag");
    }

    #[test]
    fn a_flag_said_before_is_replaced() {
        let said = words("kube-scheduler --config=/a --b=1 --config /c --v");
        assert_eq!(with(&said, "config", "/x").join(" "), "kube-scheduler --b=1 --v --config=/x");
    }

    #[test]
    fn what_kube_scheduler_would_ignore_is_carried_over() {
        let said = words(
            "kube-scheduler --kubeconfig=/k --kube-api-qps=70.5 --kube-api-burst=90 --profiling=false --leader-elect=true",
        );
        assert_eq!(
            carried(&said).unwrap(),
            json!({
                "clientConnection": {"kubeconfig": "/k", "qps": 70.5, "burst": 90},
                "enableProfiling": false,
            })
        );
        let bad = carried(&words("x --profiling=perhaps")).unwrap_err().to_string();
        assert!(bad.starts_with("--profiling=perhaps of kube-scheduler cannot be read"), "{bad}");
    }
}
