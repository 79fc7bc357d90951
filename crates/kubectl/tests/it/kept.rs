//! The scheduler's answers, and the transcripts.

use std::path::{Path, PathBuf};

/// An answer of the scheduler.
fn answer(name: &str) -> serde_json::Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scheduler/tests/answers");
    let path = folder.join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// An answer, as we read it.
pub(crate) fn read<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_value(answer(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Compares with the transcript.
#[track_caller]
pub(crate) fn is(name: &str, text: &str) {
    let path: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/transcripts/{name}.txt"));
    if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
        std::fs::write(path, text).unwrap();
        return;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == wanted, "{name}\n--- wanted\n{wanted}\n--- printed\n{text}");
}
