//! Agents' Leases: that an agent lives, and what it measures.
//!
//! An agent renews one Lease in our namespace, named like its node, and writes the load of its
//! devices into an annotation of it. Whether it lives is judged by when we see it renewed, on our
//! own clock, so that clocks of nodes may be wrong.

use std::collections::{BTreeMap, HashMap};

use ledger::{Measured, STALE_AFTER_MILLIS};
use model::{Cores, DeviceId, Mebibytes, NodeName};
use serde::{Deserialize, Serialize};

/// Annotation of an agent's Lease: what it measured on its devices.
pub const LOAD: &str = "nano-gpu/load";

/// Label of an agent's Lease, so that one watch shows them and no others.
pub(crate) const AGENT: &str = "nano-gpu/agent";

/// Why a text is no load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Not JSON, or a field of the wrong kind.
    #[error("load is not the JSON it should be")]
    Json(#[from] serde_json::Error),
    /// Written by a newer agent.
    #[error("load has version {0}; this build reads version 1")]
    Version(u32),
}

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u32,
    devices: BTreeMap<DeviceId, WireMeasured>,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Default)]
struct WireMeasured {
    #[serde(default)]
    busy: Cores,
    #[serde(default, rename = "strangersMiB")]
    strangers: Mebibytes,
}

/// The annotation for `measured`.
pub fn encode_load(measured: &[(DeviceId, Measured)]) -> String {
    let wire = |m: &Measured| WireMeasured { busy: m.busy, strangers: m.strangers };
    let devices = measured.iter().map(|(id, m)| (id.clone(), wire(m))).collect();
    serde_json::to_string(&Wire { v: 1, devices }).unwrap_or_default()
}

/// What the annotation says.
pub fn decode_load(text: &str) -> Result<Vec<(DeviceId, Measured)>, LoadError> {
    let wire: Wire = serde_json::from_str(text)?;
    if wire.v != 1 {
        return Err(LoadError::Version(wire.v));
    }
    let measured = |m: WireMeasured| Measured { busy: m.busy, strangers: m.strangers };
    Ok(wire.devices.into_iter().map(|(id, m)| (id, measured(m))).collect())
}

/// What is remembered of the Leases to tell a renewal from a repetition.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    renewed: HashMap<NodeName, Option<jiff::Timestamp>>,
}

/// A Lease, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Renewal {
    /// Its name, which is the node's.
    pub(crate) name: String,
    /// When it was renewed, by the agent's clock.
    pub(crate) at: Option<jiff::Timestamp>,
    /// The annotation with what was measured.
    pub(crate) load: Option<String>,
}

/// What a Lease tells.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) node: NodeName,
    /// Whether it was renewed since it was last seen.
    pub(crate) beats: bool,
    pub(crate) load: Vec<(DeviceId, Measured)>,
}

impl Heartbeats {
    /// What `lease` tells, at this time on the wall.
    pub(crate) fn hear(&mut self, lease: &Renewal, wall: jiff::Timestamp) -> Option<Heard> {
        let node = NodeName::parse(&lease.name).ok()?;
        let renewed = lease.at;
        let beats = match self.renewed.insert(node.clone(), renewed) {
            Some(before) => renewed.is_some() && before != renewed,
            // Seen for the first time it may be a leftover of a dead agent. Believed only if both
            // clocks call it recent; an agent with a wrong clock is heard at its next renewal.
            None => renewed.is_some_and(|at| {
                let age = wall.as_millisecond().abs_diff(at.as_millisecond());
                age <= STALE_AFTER_MILLIS
            }),
        };
        let load =
            lease.load.as_deref().and_then(|text| decode_load(text).ok()).unwrap_or_default();
        Some(Heard { node, beats, load })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(renewed: &str) -> Renewal {
        let load = r#"{"v":1,"devices":{"GPU-1":{"busy":40,"strangersMiB":512}}}"#;
        Renewal { name: "n-1".to_owned(), at: renewed.parse().ok(), load: Some(load.to_owned()) }
    }

    #[test]
    fn only_a_renewal_is_a_heartbeat() {
        let wall: jiff::Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let mut beats = Heartbeats::default();
        let mut hear = |at: &str| beats.hear(&lease(at), wall).unwrap().beats;
        assert!(hear("2026-01-01T00:00:30.000000Z"), "recent at first sight");
        assert!(!hear("2026-01-01T00:00:30.000000Z"), "seen again");
        assert!(hear("2026-01-01T00:00:40.000000Z"), "renewed");
        assert!(hear("2020-01-01T00:00:00.000000Z"), "renewed, by a clock that was set back");
    }

    #[test]
    fn a_leftover_is_no_heartbeat() {
        let wall: jiff::Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let mut beats = Heartbeats::default();
        let heard = beats.hear(&lease("2026-01-01T00:00:30.000000Z"), wall).unwrap();
        assert!(!heard.beats);
        assert_eq!(heard.load[0].1, Measured { busy: Cores(40), strangers: Mebibytes(512) });
    }

    #[test]
    fn load_is_read_back_and_newer_versions_are_not_guessed() {
        let id = DeviceId::parse("GPU-1").unwrap();
        let measured = vec![(id, Measured { busy: Cores(7), strangers: Mebibytes(1) })];
        assert_eq!(decode_load(&encode_load(&measured)).unwrap(), measured);
        assert!(decode_load(r#"{"v":2,"devices":{}}"#).is_err());
        assert!(decode_load("").is_err());
    }
}
