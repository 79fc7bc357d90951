//! What is known from one run to the next. Pure.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A digest of bytes, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_all([bytes])
    }

    /// Of all these, each with its length, so that no two lists are alike.
    pub fn of_all<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut sum = Sha256::new();
        for part in parts {
            sum.update((part.len() as u64).to_be_bytes());
            sum.update(part);
        }
        let mut text = String::new();
        for byte in sum.finalize() {
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The beginning tells enough to a person.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.get(..12).unwrap_or(&self.0))
    }
}

/// How far we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The manifest is about to be replaced.
    Patching,
    /// It is replaced, and nobody looked yet whether kube-scheduler likes it.
    Patched,
    /// kube-scheduler runs with it.
    Verified,
    /// The manifest before is about to be put back.
    Undoing,
}

/// What was done last, or is being done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// The form of this file.
    pub version: u32,
    /// How far we are.
    pub phase: Phase,
    /// The manifest before us, which is kept.
    pub before: Digest,
    /// The manifest of ours.
    pub after: Digest,
    /// The manifest of ours that this one replaces, if it is not the first.
    pub replaces: Option<Digest>,
    /// The certificate that kube-scheduler served with when the manifest was replaced: one that it
    /// makes anew at each start tells whether it was started.
    pub served: Option<Digest>,
}

/// The form that is written.
pub const VERSION: u32 = 1;

/// Whose the manifest is, by its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Nobody has patched anything.
    Untouched,
    /// As it was before us, though there is a journal.
    Before,
    /// As we wrote it.
    Ours,
    /// Changed by somebody since.
    Others,
}

/// Whose a manifest is.
pub fn whose(journal: Option<&Journal>, manifest: &Digest) -> Whose {
    match journal {
        None => Whose::Untouched,
        Some(journal)
            if *manifest == journal.after || Some(manifest) == journal.replaces.as_ref() =>
        {
            Whose::Ours
        }
        Some(journal) if *manifest == journal.before => Whose::Before,
        Some(_) => Whose::Others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_known_by_its_digest() {
        let [old, before, after, other] =
            ["o", "b", "a", "x"].map(|text| Digest::of(text.as_bytes()));
        let journal = Journal {
            version: VERSION,
            phase: Phase::Patching,
            before: before.clone(),
            after: after.clone(),
            replaces: Some(old.clone()),
            served: None,
        };
        assert_eq!(whose(None, &other), Whose::Untouched);
        assert_eq!(whose(Some(&journal), &before), Whose::Before);
        assert_eq!(whose(Some(&journal), &after), Whose::Ours);
        assert_eq!(whose(Some(&journal), &old), Whose::Ours, "a renewal that was cut off");
        assert_eq!(whose(Some(&journal), &other), Whose::Others);
    }

    #[test]
    fn lists_that_only_join_alike_differ() {
        let parts = |list: &[&str]| Digest::of_all(list.iter().map(|text| text.as_bytes()));
        assert_ne!(parts(&["ab", "c"]), parts(&["a", "bc"]));
    }
}
