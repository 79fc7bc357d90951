//! What Kubernetes accepts as keys of annotations and labels and as values of labels, written
//! down from its documentation and apart from the code under test.

use dialect::Written;

/// A name: up to 63 of letters, digits, `-`, `_`, `.`, with a letter or digit at both ends.
fn is_name(text: &str) -> bool {
    let chars: Vec<char> = text.chars().collect();
    let inside = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match (chars.first(), chars.last()) {
        (Some(first), Some(last)) => {
            chars.len() <= 63
                && first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && chars.iter().all(inside)
        }
        _ => false,
    }
}

/// A prefix: labels of lower-case letters, digits and inner `-`, joined by dots, up to 253.
fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-'))
    };
    text.len() <= 253 && text.split('.').all(label)
}

pub(crate) fn is_key(text: &str) -> bool {
    match text.split('/').collect::<Vec<_>>()[..] {
        [name] => is_name(name),
        [prefix, name] => is_subdomain(prefix) && is_name(name),
        _ => false,
    }
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

/// Fails unless the API server would take all of it.
#[track_caller]
pub(crate) fn accepts(written: &Written) {
    for key in written.annotations.keys() {
        assert!(is_key(key), "annotation {key}");
    }
    for (key, value) in &written.labels {
        assert!(is_key(key) && is_label_value(value), "label {key}={value}");
    }
}

#[test]
fn the_checker_itself_knows_good_from_bad() {
    let long = "a".repeat(63);
    for good in ["a", "a/b", "nano-gpu/container-x", "A_b.C", &long, "a.b.c/d", "x/ALL_CAPS"] {
        assert!(is_key(good), "{good}");
    }
    let longer = "a".repeat(64);
    for bad in ["", "/", "a/", "/a", "a/b/c", "A/b", "-a", "a-", "a b", "a_/b", "a..b/c", &longer] {
        assert!(!is_key(bad), "{bad}");
    }
    assert!(is_label_value("") && is_label_value("true") && !is_label_value("a,b"));
}
