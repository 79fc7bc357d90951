//! gpushare: `aliyun.com/gpu-mem`, memory only, the whole pod on one card.
//!
//! What a unit is, GiB or MiB, is a decision of the cluster. Compute is neither promised nor
//! limited.

use std::collections::BTreeMap;

use model::{Claimed, Container, Cores, DeviceRef, MemoryAsk, Pod, peak};

use crate::asking::{Ask, Speaks, count, memory, positive};
use crate::observing::{Seen, minors, no_card};
use crate::refusal::Refusal;
use crate::settings::{MemoryUnit, Settings};
use crate::writing::{EnvOf, Writer, Writing};

const MEM: &str = "aliyun.com/gpu-mem";
const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
const CARD: &str = "ALIYUN_COM_GPU_MEM_DEV";
const POD: &str = "ALIYUN_COM_GPU_MEM_POD";
const CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
const ASSIGNED: &str = "ALIYUN_COM_GPU_MEM_ASSIGNED";
const ASSUME_TIME: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";
/// What newer schedulers of the family write: container index -> card index -> memory.
const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";
/// The index of a pod whose allocation failed.
const FAILED: &str = "-1";

/// Where people of gpushare list cards that take no new work: a `ConfigMap`'s namespace, its name for
/// `node`, and the key of a comma list of places in the driver's order.
pub fn unhealthy(node: &model::NodeName) -> (&'static str, String, &'static str) {
    ("kube-system", format!("unhealthy-gpu-{node}"), "gpus")
}

/// The dialect of gpushare.
pub(crate) struct Gpushare;

impl Speaks for Gpushare {
    fn identities(&self) -> &'static [&'static str] {
        &[MEM]
    }

    fn measures(&self) -> &'static [&'static str] {
        &[]
    }

    fn ask(
        &self,
        container: &Container,
        settings: &Settings,
        notes: &mut Vec<String>,
    ) -> Result<Option<Ask>, Refusal> {
        let Some(units) = positive(container, MEM, notes)? else { return Ok(None) };
        let hint = match settings.gpushare_unit {
            MemoryUnit::Gibibytes => "it counts GiB of one card: write 10 for 10 GiB",
            MemoryUnit::Mebibytes => "it counts MiB of one card: write 10240 for 10 GiB",
        };
        let exact = memory(container, MEM, units, settings.gpushare_unit.size(), hint)?;
        Ok(Some(Ask::share(1, Cores::ZERO, MemoryAsk::Exact(exact))))
    }

    fn one_card(&self) -> bool {
        true
    }

    fn write(&self, writing: &Writing, out: &mut Writer) {
        let Some(card) = writing.cards().next() else { return };
        out.annotate(INDEX, &card.minor.to_string());
        out.annotate(CARD, &in_units(card.memory.0, writing.settings).to_string());
        out.annotate(POD, &units_of(writing.pod).to_string());
        out.annotate(ASSIGNED, "false");
        out.annotate(ASSUME_TIME, &writing.now.0.to_string());
    }

    fn env(&self, of: &EnvOf) -> Vec<(String, String)> {
        let Some(card) = of.cards().next() else { return Vec::new() };
        let own = of.container.asks(MEM).unwrap_or_default().to_owned();
        vec![
            (INDEX.into(), card.minor.to_string()),
            (POD.into(), units_of(of.pod).to_string()),
            (CONTAINER.into(), own),
            (CARD.into(), in_units(card.memory.0, of.settings).to_string()),
        ]
    }

    fn early_env(&self, tickets: usize, _ids_hash: &str) -> Vec<(String, String)> {
        vec![(CONTAINER.into(), tickets.to_string())]
    }

    fn recognise(&self, seen: &Seen) -> Option<Result<Vec<Claimed>, String>> {
        let annotations = &seen.pod.annotations;
        let apps = || seen.pod.containers.iter().filter(|c| seen.must_hold(c));
        if let Some(text) = annotations.get(ALLOCATION) {
            let by_container: BTreeMap<String, BTreeMap<String, u64>> =
                match serde_json::from_str(text) {
                    Ok(map) => map,
                    Err(_) => return Some(Err(format!("annotation {ALLOCATION} is not its JSON"))),
                };
            let claim = |container: &Container| {
                let cards = by_container.get(&container.position.to_string());
                let cards = cards.filter(|cards| !cards.is_empty());
                let cards = cards.ok_or_else(|| no_card(ALLOCATION, container))?;
                let list = cards.keys().map(String::as_str).collect::<Vec<_>>().join(",");
                let minors = minors(ALLOCATION, &list)?.into_iter().map(DeviceRef::Minor);
                Ok(seen.claimed(container, minors))
            };
            return Some(apps().map(claim).collect());
        }
        let index = annotations.get(INDEX).filter(|index| *index != FAILED)?;
        let claim = |container: &Container| {
            let cards = minors(INDEX, index)?.into_iter().map(DeviceRef::Minor);
            Ok(seen.claimed(container, cards))
        };
        Some(apps().map(claim).collect())
    }
}

/// What the pod asks at its peak, in units.
fn units_of(pod: &Pod) -> u64 {
    let units = |container: &Container| count(container, MEM).ok().flatten().unwrap_or(0);
    peak(pod.containers.iter().map(|container| (container.role, units(container))))
}

fn in_units(mebibytes: u64, settings: &Settings) -> u64 {
    mebibytes / settings.gpushare_unit.size().0
}
