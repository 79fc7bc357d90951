//! The grammar of CDI names, in the form that every version of the standard accepts.

use std::fmt;

use model::ids::Quoted;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::SpecError;

/// A vendor and a class, such as `nano-gpu/alloc`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    text: String,
}

impl Kind {
    /// Checks and keeps `text`.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let valid = text.split_once('/').is_some_and(|(vendor, class)| {
            let bounded = |part: &str| {
                part.len() <= 128 && part.starts_with(|c: char| c.is_ascii_alphabetic())
            };
            // A class with a dot needs a newer version of the standard than we write.
            bounded(vendor) && bounded(class) && is_name(vendor, b"_-.") && is_name(class, b"_-")
        });
        if valid {
            Ok(Self { text: text.into() })
        } else {
            Err(SpecError::BadKind { kind: Quoted::new(text) })
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The full name of a device of this kind, as a container is given it.
    pub fn device(&self, name: &str) -> Result<String, SpecError> {
        check_device_name(name)?;
        Ok(format!("{}={name}", self.text))
    }

    /// The name of the device in a full name, if it is one of this kind.
    pub fn device_in<'a>(&self, full: &'a str) -> Option<&'a str> {
        let name = full.strip_prefix(self.as_str())?.strip_prefix('=')?;
        check_device_name(name).is_ok().then_some(name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

pub(super) fn check_device_name(name: &str) -> Result<(), SpecError> {
    // The length is ours: the name becomes part of a file's name.
    if name.len() <= 128 && is_name(name, b"_-.:") {
        Ok(())
    } else {
        Err(SpecError::BadName { name: Quoted::new(name) })
    }
}

/// Letters, digits and `signs`, and no sign first or last.
fn is_name(text: &str, signs: &[u8]) -> bool {
    let plain = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    plain(text.as_bytes().first())
        && plain(text.as_bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || signs.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for good in ["nano-gpu/alloc", "nvidia.com/gpu", "a/b", "Vendor_1.x/c-2"] {
            assert_eq!(Kind::parse(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "/",
            "alloc",
            "nano-gpu/",
            "/alloc",
            "1a/b",
            "a/1b",
            "a-/b",
            "a/b-",
            "a/b/c",
            "a/b.c",
            "a b/c",
            "a/b=c",
            "ä/b",
            "../b",
        ] {
            assert!(Kind::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn device_names() {
        let kind = Kind::parse("nano-gpu/alloc").unwrap();
        for good in ["0", "gpu0", "0123456789abcdef-0123456789abcdef", "GPU-1:0", "1.2_3"] {
            let full = kind.device(good).unwrap();
            assert_eq!(kind.device_in(&full), Some(good));
        }
        for bad in ["", "-a", "a-", "a/b", "a=b", "a b", "..", "ä", &"a".repeat(129)] {
            assert!(kind.device(bad).is_err(), "{bad}");
        }
        assert_eq!(kind.device_in("nano-gpu/other=0"), None);
        assert_eq!(kind.device_in("nano-gpu/alloc=../0"), None);
        assert_eq!(kind.device_in("nano-gpu/alloc"), None);
    }
}
