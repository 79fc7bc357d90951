//! Names as types: validated once where they enter, never again.
//!
//! The rules are those of Kubernetes, which also keeps the placement codec unambiguous: none
//! of its separators can stand in a name.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that is not the name it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text} is not a {what}: {rule}")]
pub struct NameError {
    what: &'static str,
    text: Quoted,
    rule: &'static str,
}

/// Text from outside, quoted and cut so that a huge value cannot flood a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quoted(String);

impl Quoted {
    /// Quotes `text`, keeping at most 64 characters of it.
    pub fn new(text: &str) -> Self {
        let mut kept: String = text.chars().take(64).collect();
        if kept.len() < text.len() {
            kept.push('…');
        }
        Self(format!("{kept:?}"))
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and keeps `text`.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(NameError { what: $what, text: Quoted::new(text), rule: $rule })
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name! {
    /// A node.
    NodeName, "node name", "a DNS name of at most 253 lower-case letters, digits, '-' and '.'",
    |text| (1..=253).contains(&text.len()) && text.split('.').all(is_dns_label)
}
name! {
    /// A container, unique in its pod.
    ContainerName, "container name", "a DNS label of at most 63 lower-case letters, digits and '-'",
    |text| text.len() <= 63 && is_dns_label(text)
}
name! {
    /// A device, unique in the world: its UUID as the driver spells it.
    DeviceId, "device id", "1 to 128 letters, digits, '-', '_', '.' and '/'",
    |text| (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b))
}
name! {
    /// A pod's UID: two pods of one name are two pods.
    PodUid, "pod UID", "1 to 128 printable characters without blanks",
    |text| (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

fn is_dns_label(text: &str) -> bool {
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    ends(text.bytes().next())
        && ends(text.bytes().last())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Who a pod is: the name for people, the UID for the ledger.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: PodUid,
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_kubernetes() {
        assert!(NodeName::parse("gpu-1.rack-2").is_ok());
        for bad in ["", "Gpu", "a..b", "-a", "a-", "a b", &"a".repeat(254)] {
            assert!(NodeName::parse(bad).is_err(), "{bad}");
        }
        assert!(ContainerName::parse(&"a".repeat(63)).is_ok());
        assert!(ContainerName::parse(&"a".repeat(64)).is_err());
        assert!(DeviceId::parse("MIG-GPU-1/2/0").is_ok());
        assert!(DeviceId::parse("GPU:1").is_err());
    }

    #[test]
    fn a_refused_name_is_quoted_and_cut() {
        let error = NodeName::parse(&"é".repeat(1000)).unwrap_err().to_string();
        assert!(error.len() < 400 && error.contains('…'), "{error}");
        assert!(error.ends_with("lower-case letters, digits, '-' and '.'"), "{error}");
    }
}
