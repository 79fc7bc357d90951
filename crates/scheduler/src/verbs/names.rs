//! Names of nodes on the wire. Thousands come with every request and most go back as they came, so
//! they are cut out of the text and put back into it without being looked at letter by letter.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;

/// A list of names as it came.
#[derive(Debug)]
pub struct Names<'a> {
    raw: &'a RawValue,
    read: Read<'a>,
}

#[derive(Debug)]
enum Read<'a> {
    /// Each stands in the text as it is.
    Plain(Vec<&'a str>),
    /// Some have letters that are escaped in the text.
    Escaped(Vec<Cow<'a, str>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Names<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw: &RawValue = Deserialize::deserialize(deserializer)?;
        let read = match cut(raw.get()) {
            Some(list) => Read::Plain(list),
            None => Read::Escaped(serde_json::from_str(raw.get()).map_err(de::Error::custom)?),
        };
        Ok(Self { raw, read })
    }
}

/// The names in a list that is known to be JSON; nothing if it is not as plain as ours are.
fn cut(text: &str) -> Option<Vec<&str>> {
    if text.contains('\\') {
        return None;
    }
    let mut pieces = text.split('"');
    if pieces.next()?.trim_end() != "[" {
        return None;
    }
    let mut names = Vec::with_capacity(text.len() / 12);
    loop {
        names.push(pieces.next()?);
        match pieces.next()? {
            "," => {}
            "]" => break,
            other => match other.trim() {
                "," => {}
                "]" => break,
                _ => return None,
            },
        }
    }
    pieces.next().is_none().then_some(names)
}

/// A list of names to be sent.
#[derive(Debug)]
pub enum Listed<'a> {
    /// All that came, as they came.
    All(&'a RawValue),
    /// These.
    These(Vec<&'a str>),
}

impl<'a> Names<'a> {
    /// Each of them.
    pub fn list(&self) -> Cow<'_, [&str]> {
        match &self.read {
            Read::Plain(list) => Cow::Borrowed(list),
            Read::Escaped(list) => list.iter().map(|name| &**name).collect(),
        }
    }

    /// Whether each stands in the text as it is, with nothing escaped.
    pub fn is_plain(&self) -> bool {
        matches!(self.read, Read::Plain(_))
    }

    /// All of them, to be sent back.
    pub fn all(&self) -> Listed<'a> {
        Listed::All(self.raw)
    }
}

impl Serialize for Listed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All(raw) => raw.serialize(serializer),
            Self::These(names) => names.serialize(serializer),
        }
    }
}

impl Listed<'_> {
    /// Appends the list, of names with nothing to escape.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::All(raw) => out.extend_from_slice(raw.get().as_bytes()),
            Self::These(names) => {
                out.push(b'[');
                for (place, name) in names.iter().enumerate() {
                    out.extend_from_slice(if place == 0 { b"\"" } else { b",\"" });
                    out.extend_from_slice(name.as_bytes());
                    out.push(b'"');
                }
                out.push(b']');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lists_are_cut_and_others_are_read() {
        for (text, plain) in
            [(r#"["a","b"]"#, true), ("[ \"a\" ,\n\"b\" ]", true), (r#"["a","\u0062"]"#, false)]
        {
            let names: Names = serde_json::from_str(text).unwrap();
            assert_eq!((&*names.list(), names.is_plain()), (&["a", "b"][..], plain));
        }
        let none: Names = serde_json::from_str("[ ]").unwrap();
        assert!(none.list().is_empty());
        for text in
            ["7", r#""a""#, r#"["a",7]"#, r#"["a",["b"]]"#, r#"{"a":"b"}"#, r#"[{"a":"b"}]"#]
        {
            assert!(serde_json::from_str::<Names>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Option<Names>>("null").unwrap().is_none());
    }

    #[test]
    fn what_is_written_by_hand_is_what_serde_writes() {
        let names: Names = serde_json::from_str(r#"["a","b-1.c"]"#).unwrap();
        for listed in [names.all(), Listed::These(vec!["a", "b-1.c"]), Listed::These(vec![])] {
            let mut out = Vec::new();
            listed.write(&mut out);
            assert_eq!(out, serde_json::to_vec(&listed).unwrap());
        }
    }
}
