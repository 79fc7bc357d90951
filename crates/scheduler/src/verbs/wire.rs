//! The extender's JSON. kube-scheduler writes Go's field names (`NodeNames`), older ones wrote
//! `nodenames`, and Go reads both: so any letter case is read, and Go's names are written.
//!
//! Borrowed from the request's body: of 5,000 nodes nothing but the names is looked at.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::names::{Listed, Names};

/// What filter and prioritize are asked.
#[derive(Debug, Default)]
pub struct Args<'a> {
    /// The pod, unread.
    pub pod: Option<&'a RawValue>,
    /// Whole nodes, from a kube-scheduler that does not trust our cache.
    pub nodes: Option<Nodes<'a>>,
    /// Names of nodes, from one that does.
    pub names: Option<Names<'a>>,
}

impl Args<'_> {
    /// Whether names can be sent back as they came.
    pub fn is_plain(&self) -> bool {
        self.nodes.is_none() && self.names.as_ref().is_some_and(Names::is_plain)
    }
}

/// Whole nodes: their names, and their text as it came.
#[derive(Debug, Default)]
pub struct Nodes<'a> {
    /// Name and text of each.
    pub items: Vec<(Cow<'a, str>, &'a RawValue)>,
}

/// What bind is asked.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindArgs {
    /// The pod's name.
    pub pod_name: String,
    /// Its namespace.
    pub pod_namespace: String,
    /// Its UID.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Where to.
    pub node: String,
}

/// What preempt is asked: for each node whom kube-scheduler would evict, by UID.
#[derive(Debug, Default)]
pub struct PreemptArgs<'a> {
    /// The pod, unread.
    pub pod: Option<&'a RawValue>,
    /// UIDs by node.
    pub victims: BTreeMap<Cow<'a, str>, Vec<Cow<'a, str>>>,
}

/// What filter answers.
#[derive(Debug, Default)]
pub struct FilterResult<'a> {
    /// Whole nodes, if they were given.
    pub nodes: Option<Vec<&'a RawValue>>,
    /// Names, if they were given.
    pub names: Option<Listed<'a>>,
    /// Nodes that could fit later, and why not now; kube-scheduler may evict pods there.
    pub failed: Vec<(&'a str, Cow<'a, str>)>,
    /// Nodes on which kube-scheduler must not evict, and why: they never will do, or it is ours.
    pub failed_for_good: Vec<(&'a str, Cow<'a, str>)>,
    /// A request we cannot read.
    pub error: String,
}

impl FilterResult<'_> {
    /// Says that the request cannot be read.
    pub fn error(error: String) -> Self {
        Self { error, ..Self::default() }
    }

    /// The answer's bytes. `plain`: no name has anything to escape, so all is put together as it is.
    pub fn write(&self, plain: bool) -> Vec<u8> {
        if !plain || self.nodes.is_some() || !self.error.is_empty() {
            // Maps with text keys only: writing them cannot fail.
            return serde_json::to_vec(self).unwrap_or_default();
        }
        let refused = self.failed.len() + self.failed_for_good.len();
        let mut out = Vec::with_capacity(256 + 96 * refused);
        out.extend_from_slice(br#"{"Nodes":null,"NodeNames":"#);
        match &self.names {
            Some(names) => names.write(&mut out),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(br#","FailedNodes":"#);
        reasons(&self.failed, &mut out);
        out.extend_from_slice(br#","FailedAndUnresolvableNodes":"#);
        reasons(&self.failed_for_good, &mut out);
        out.extend_from_slice(br#","Error":""}"#);
        out
    }
}

/// Appends names and their reasons. Few reasons stand for many names: each is escaped once.
fn reasons(all: &[(&str, Cow<'_, str>)], out: &mut Vec<u8>) {
    let mut escaped: Vec<(*const u8, usize, Vec<u8>)> = Vec::new();
    out.push(b'{');
    for (place, (name, why)) in all.iter().enumerate() {
        out.extend_from_slice(if place == 0 { b"\"" } else { b",\"" });
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        let same = |(at, length, _): &&(*const u8, usize, Vec<u8>)| {
            *at == why.as_ptr() && *length == why.len()
        };
        if let Some((.., text)) = escaped.iter().find(same) {
            out.extend_from_slice(text);
            continue;
        }
        let text = serde_json::to_vec(why).unwrap_or_default();
        out.extend_from_slice(&text);
        if let Cow::Borrowed(_) = why {
            escaped.push((why.as_ptr(), why.len(), text));
        }
    }
    out.push(b'}');
}

impl Serialize for FilterResult<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct List<'a>(&'a [&'a RawValue]);
        impl Serialize for List<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("metadata", &BTreeMap::<&str, &str>::new())?;
                map.serialize_entry("items", self.0)?;
                map.end()
            }
        }
        struct Reasons<'a>(&'a [(&'a str, Cow<'a, str>)]);
        impl Serialize for Reasons<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|(name, why)| (name, why)))
            }
        }
        let mut map = serializer.serialize_map(Some(5))?;
        map.serialize_entry("Nodes", &self.nodes.as_deref().map(List))?;
        map.serialize_entry("NodeNames", &self.names)?;
        map.serialize_entry("FailedNodes", &Reasons(&self.failed))?;
        map.serialize_entry("FailedAndUnresolvableNodes", &Reasons(&self.failed_for_good))?;
        map.serialize_entry("Error", &self.error)?;
        map.end()
    }
}

/// What prioritize answers.
#[derive(Debug, Default)]
pub struct Scores<'a>(pub Vec<(&'a str, u8)>);

impl Scores<'_> {
    /// The answer's bytes; see [`FilterResult::write`].
    pub fn write(&self, plain: bool) -> Vec<u8> {
        if !plain {
            return serde_json::to_vec(self).unwrap_or_default();
        }
        let mut out = Vec::with_capacity(2 + 40 * self.0.len());
        out.push(b'[');
        for (place, (host, score)) in self.0.iter().enumerate() {
            out.extend_from_slice(if place == 0 { br#"{"Host":""# } else { br#",{"Host":""# });
            out.extend_from_slice(host.as_bytes());
            out.extend_from_slice(br#"","Score":"#);
            // 0 to 10.
            if *score >= 10 {
                out.extend_from_slice(b"10}");
            } else {
                out.extend_from_slice(&[b'0' + score, b'}']);
            }
        }
        out.push(b']');
        out
    }
}

impl Serialize for Scores<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Score<'a> {
            host: &'a str,
            score: u8,
        }
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for &(host, score) in &self.0 {
            list.serialize_element(&Score { host, score })?;
        }
        list.end()
    }
}

/// What bind answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindResult {
    /// Why not, empty if it is bound.
    pub error: String,
}

/// What preempt answers: for each node that stays a candidate whom to evict.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptResult {
    /// Victims by node.
    pub node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// Pods to evict on one node.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct MetaVictims {
    /// Who.
    pub pods: Vec<MetaPod>,
    /// How many of them a budget would rather keep.
    #[serde(rename = "NumPDBViolations")]
    pub violations: i64,
}

/// A pod, by UID.
#[derive(Debug, Serialize)]
pub struct MetaPod {
    /// Its UID.
    #[serde(rename = "UID")]
    pub uid: String,
}

/// A sentence as kube-scheduler can pass it on. It takes reasons for format strings, in which a
/// percent sign eats what follows.
pub fn sentence(text: &str) -> String {
    text.replace('%', " percent")
}

/// Reads an object whose keys may have any letter case.
trait AnyCase<'de>: Default {
    const WHAT: &'static str;
    /// Takes the value of `key`, given in lower case, or says that the key is not its.
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;
}

struct AnyCaseVisitor<T>(PhantomData<T>);

impl<'de, T: AnyCase<'de>> Visitor<'de> for AnyCaseVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut value = T::default();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if !value.take(&key.to_ascii_lowercase(), &mut map)? {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(value)
    }
}

macro_rules! read_any_case {
    ($name:ty) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(AnyCaseVisitor::<Self>(PhantomData))
            }
        }
    };
}

read_any_case!(Args<'de>);
read_any_case!(Nodes<'de>);
read_any_case!(BindArgs);
read_any_case!(PreemptArgs<'de>);
read_any_case!(Victims<'de>);
read_any_case!(Victim<'de>);
read_any_case!(NamedMeta<'de>);

impl<'de> AnyCase<'de> for Args<'de> {
    const WHAT: &'static str = "a pod and nodes";

    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "pod" => self.pod = map.next_value::<Option<&RawValue>>()?,
            "nodes" => self.nodes = map.next_value()?,
            "nodenames" => self.names = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<'de> AnyCase<'de> for Nodes<'de> {
    const WHAT: &'static str = "a list of nodes";

    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key != "items" {
            return Ok(false);
        }
        let raw: Option<Vec<&RawValue>> = map.next_value()?;
        for node in raw.into_iter().flatten() {
            let name = name_of(node.get()).map_err(de::Error::custom)?;
            self.items.push((name, node));
        }
        Ok(true)
    }
}

/// The name of an object that is known to be JSON. Reading ends where the name is found: it stands
/// at the beginning, and tens of kilobytes follow it.
fn name_of(text: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    struct First<'s, 'de>(&'s mut Option<Cow<'de, str>>);
    impl<'de> Visitor<'de> for First<'_, 'de> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with a name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                if key.eq_ignore_ascii_case("metadata") {
                    *self.0 = Some(map.next_value::<NamedMeta>()?.name);
                    // No error to anyone: the only way to stop reading.
                    return Err(de::Error::custom("found"));
                }
                map.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }
    let mut name = None;
    let read = serde_json::Deserializer::from_str(text).deserialize_map(First(&mut name));
    match (name, read) {
        (Some(name), _) => Ok(name),
        (None, Ok(())) => Ok(Cow::default()),
        (None, Err(error)) => Err(error),
    }
}

#[derive(Default)]
struct NamedMeta<'a> {
    name: Cow<'a, str>,
    uid: Cow<'a, str>,
}

impl<'de> AnyCase<'de> for NamedMeta<'de> {
    const WHAT: &'static str = "metadata";

    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "name" => self.name = map.next_value_seed(Borrowed)?,
            "uid" => self.uid = map.next_value_seed(Borrowed)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<'de> AnyCase<'de> for BindArgs {
    const WHAT: &'static str = "a pod's name, namespace and UID, and a node";

    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "podname" => self.pod_name = map.next_value()?,
            "podnamespace" => self.pod_namespace = map.next_value()?,
            "poduid" => self.pod_uid = map.next_value()?,
            "node" => self.node = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<'de> AnyCase<'de> for PreemptArgs<'de> {
    const WHAT: &'static str = "a pod and victims by node";

    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "pod" => self.pod = map.next_value::<Option<&RawValue>>()?,
            "nodenametovictims" | "nodenametometavictims" => {
                let all: Option<BTreeMap<String, Victims>> = map.next_value()?;
                for (node, victims) in all.into_iter().flatten() {
                    let uids = victims.pods.into_iter().map(|victim| victim.uid).collect();
                    self.victims.insert(node.into(), uids);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default)]
struct Victims<'a> {
    pods: Vec<Victim<'a>>,
}

impl<'de> AnyCase<'de> for Victims<'de> {
    const WHAT: &'static str = "victims";

    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key == "pods" {
            self.pods = map.next_value::<Option<Vec<Victim>>>()?.unwrap_or_default();
        }
        Ok(key == "pods")
    }
}

/// A whole pod, or its UID alone.
#[derive(Default)]
struct Victim<'a> {
    uid: Cow<'a, str>,
}

impl<'de> AnyCase<'de> for Victim<'de> {
    const WHAT: &'static str = "a pod";

    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "uid" => self.uid = map.next_value_seed(Borrowed)?,
            "metadata" => self.uid = map.next_value::<NamedMeta>()?.uid,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A text that is borrowed where it has no escapes; serde's own `Cow` never borrows.
struct Borrowed;

impl<'de> DeserializeSeed<'de> for Borrowed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_letter_case_is_read() {
        for text in [
            r#"{"Pod":{"metadata":{}},"NodeNames":["a","b"],"Nodes":null}"#,
            r#"{"pod":{"metadata":{}},"nodenames":["a","b"],"more":{"x":[1]}}"#,
            r#"{"POD":{"metadata":{}},"nodeNames":["a","\u0062"]}"#,
        ] {
            let args: Args = serde_json::from_str(text).unwrap();
            assert_eq!(args.pod.unwrap().get(), r#"{"metadata":{}}"#);
            assert_eq!(*args.names.unwrap().list(), ["a", "b"]);
            assert!(args.nodes.is_none());
        }
        let bind = r#"{"podname":"p","PodNamespace":"n","PODUID":"u","node":"x"}"#;
        let args: BindArgs = serde_json::from_str(bind).unwrap();
        assert_eq!((args.pod_uid.as_str(), args.node.as_str()), ("u", "x"));
    }

    #[test]
    fn whole_nodes_come_back_as_they_came() {
        let text = r#"{"Pod":{},"Nodes":{"metadata":{},"items":[
            {"metadata":{"uid":"1","name":"a"},"spec":{}}, {"Metadata":{"Name":"b"}}]}}"#;
        let args: Args = serde_json::from_str(text).unwrap();
        let nodes = args.nodes.unwrap();
        let names: Vec<&str> = nodes.items.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["a", "b"]);
        let kept = FilterResult { nodes: Some(vec![nodes.items[1].1]), ..FilterResult::default() };
        assert_eq!(
            serde_json::to_string(&kept).unwrap(),
            r#"{"Nodes":{"metadata":{},"items":[{"Metadata":{"Name":"b"}}]},"NodeNames":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}"#
        );
    }

    #[test]
    fn what_is_written_by_hand_is_what_serde_writes() {
        let why = String::from("no \"A100\" at 50 percent");
        let names: Names = serde_json::from_str(r#"["a","b"]"#).unwrap();
        let results = [
            FilterResult { names: Some(names.all()), ..FilterResult::default() },
            FilterResult {
                names: Some(Listed::These(vec!["a"])),
                failed: vec![("b", Cow::Borrowed(&why)), ("c", Cow::Borrowed(&why))],
                failed_for_good: vec![("d", Cow::Owned("x".into())), ("e", Cow::Owned("y".into()))],
                ..FilterResult::default()
            },
            FilterResult::error("no".into()),
        ];
        for result in results {
            assert_eq!(result.write(true), serde_json::to_vec(&result).unwrap());
        }
        for scores in [Scores(vec![]), Scores(vec![("a", 10), ("b", 0), ("c", 9)])] {
            assert_eq!(scores.write(true), serde_json::to_vec(&scores).unwrap());
        }
    }

    #[test]
    fn victims_are_whole_pods_or_uids() {
        for text in [
            r#"{"Pod":{},"NodeNameToVictims":{"n":{"Pods":[{"metadata":{"name":"v","uid":"u-1"}}]}}}"#,
            r#"{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"u-1"}],"NumPDBViolations":0}},"NodeNameToVictims":null}"#,
        ] {
            let args: PreemptArgs = serde_json::from_str(text).unwrap();
            assert_eq!(args.victims["n"], ["u-1"]);
        }
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        for text in ["", "[]", "7", r#"{"NodeNames":7}"#, r#"{"Nodes":{"items":[7]}}"#] {
            assert!(serde_json::from_str::<Args>(text).is_err(), "{text}");
        }
    }
}
