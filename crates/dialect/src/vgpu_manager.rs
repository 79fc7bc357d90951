//! vgpu-manager: `nvidia.com/vgpu-number` cards, and of each `vgpu-cores` and `vgpu-memory` MiB.
//!
//! Spoken only where the administrator says so.

use std::collections::BTreeMap;

use model::ids::Quoted;
use model::{
    Claimed, Container, Cores, DeviceId, DeviceRef, Mebibytes, MemoryAsk, Part, Pod, Portion,
    Request,
};

use crate::asking::{Ask, Speaks, half, memory, positive};
use crate::observing::{Seen, no_card};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::writing::{EnvOf, Writer, Writing};

const NUMBER: &str = "nvidia.com/vgpu-number";
const CORES: &str = "nvidia.com/vgpu-cores";
const MEMORY: &str = "nvidia.com/vgpu-memory";
const NODE: &str = "nvidia.com/predicate-node";
const TIME: &str = "nvidia.com/predicate-time";
const PRE_ALLOCATED: &str = "nvidia.com/pre-allocated";
const REAL_ALLOCATED: &str = "nvidia.com/real-allocated";
const PHASE: &str = "nvidia.com/assigned-phase";
/// Whether shares may use more than their compute: `fixed`, `balance` or `none`.
const POLICY: &str = "nvidia.com/vgpu-compute-policy";
/// The most cards the original gives one container.
const MOST_CARDS: u64 = 16;

/// The dialect of vgpu-manager.
pub(crate) struct VgpuManager;

impl Speaks for VgpuManager {
    fn identities(&self) -> &'static [&'static str] {
        &[NUMBER]
    }

    fn measures(&self) -> &'static [&'static str] {
        &[CORES, MEMORY]
    }

    fn ask(
        &self,
        container: &Container,
        _settings: &Settings,
        notes: &mut Vec<String>,
    ) -> Result<Option<Ask>, Refusal> {
        let number = positive(container, NUMBER, notes)?;
        let cores = positive(container, CORES, notes)?;
        let mebibytes = positive(container, MEMORY, notes)?;
        let Some(number) = number else {
            return match (cores, mebibytes) {
                (None, None) => Ok(None),
                (Some(_), _) => Err(half(container, CORES, NUMBER)),
                (None, Some(_)) => Err(half(container, MEMORY, NUMBER)),
            };
        };
        let within = |resource, value, most, must| {
            let container = container.name.clone();
            let small = u32::try_from(value).ok().filter(|_| value <= most);
            small.ok_or(Refusal::OutOfRange { container, resource, value, must })
        };
        let cards = within(NUMBER, number, MOST_CARDS, "1 to 16")?;
        let cores = Cores(within(CORES, cores.unwrap_or(0), 100, "1 to 100")?);
        let exact = match mebibytes {
            Some(value) => {
                Some(memory(container, MEMORY, value, Mebibytes(1), "it counts MiB of each card")?)
            }
            None => None,
        };
        Ok(Some(match exact {
            Some(exact) => Ask::share(cards, cores, MemoryAsk::Exact(exact)),
            None if cores.is_zero() || cores == Cores::CARD => Ask::whole(cards),
            None => Ask::share(cards, cores, MemoryAsk::Percent(Cores::CARD)),
        }))
    }

    fn pod_rules(
        &self,
        pod: &Pod,
        request: &mut Request,
        notes: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let Some(text) = pod.annotations.get(POLICY) else { return Ok(()) };
        match text.trim() {
            "fixed" => return Ok(()),
            "balance" => {}
            // A share without any limit would be one at its neighbours' cost.
            "none" => notes.push(format!(
                "annotation {POLICY} is none; shares may use the whole card while it is idle, as with balance"
            )),
            _ => {
                return Err(Refusal::Annotation {
                    key: POLICY.to_owned(),
                    value: Quoted::new(text),
                    must: "fixed, balance or none".to_owned(),
                });
            }
        }
        for container in &mut request.containers {
            if let Part::Share { cores, .. } = container.part
                && !cores.is_zero()
            {
                container.burst = Some(Cores::CARD);
            }
        }
        Ok(())
    }

    fn write(&self, writing: &Writing, out: &mut Writer) {
        let of = |container: &Container| {
            let cards = writing.grants(&container.name).map(|(card, portion)| {
                let hold = portion.hold(card);
                format!("{}_{}_{}_{}", card.index, card.id, hold.cores.0, hold.memory.0)
            });
            format!("{}[{}]", container.name, cards.collect::<Vec<_>>().join(","))
        };
        let all: Vec<String> = writing.pod.containers.iter().map(of).collect();
        out.annotate(NODE, writing.placement.node().as_str());
        out.annotate(TIME, &writing.now.0.to_string());
        out.annotate(PRE_ALLOCATED, &all.join(";"));
        out.label(PHASE, "allocating");
    }

    /// For programs that look at them. Nothing of ours takes a limit from the environment.
    fn env(&self, of: &EnvOf) -> Vec<(String, String)> {
        let mut env = vec![
            ("VGPU_POD_NAME".into(), of.pod.id.name.clone()),
            ("VGPU_POD_NAMESPACE".into(), of.pod.id.namespace.clone()),
            ("VGPU_POD_UID".into(), of.pod.id.uid.to_string()),
            ("VGPU_CONTAINER_NAME".into(), of.container.name.to_string()),
        ];
        for (i, (_, portion)) in of.grants().enumerate() {
            let Portion::Share(share) = portion else { continue };
            env.push((format!("CUDA_MEM_LIMIT_{i}"), format!("{}m", share.memory.0)));
            if !share.cores.is_zero() && share.cores < Cores::CARD {
                env.push((format!("CUDA_CORE_LIMIT_{i}"), share.cores.0.to_string()));
            }
        }
        let ids: Vec<&str> = of.cards().map(|card| card.id.as_str()).collect();
        env.push(("MANAGER_VISIBLE_DEVICES".into(), ids.join(",")));
        env
    }

    fn recognise(&self, seen: &Seen) -> Option<Result<Vec<Claimed>, String>> {
        let lists = [PRE_ALLOCATED, REAL_ALLOCATED]
            .map(|key| seen.pod.annotations.get(key).map(|text| (key, text)));
        lists.iter().any(Option::is_some).then(|| allocated(seen, lists.into_iter().flatten()))
    }
}

/// What each container got. The plugin adds a container to its own list as it starts, and that
/// outranks what the scheduler had in mind.
fn allocated<'a>(
    seen: &Seen,
    lists: impl Iterator<Item = (&'static str, &'a String)>,
) -> Result<Vec<Claimed>, String> {
    let mut got = BTreeMap::new();
    for (key, text) in lists {
        let malformed = || format!("annotation {key} is malformed at {}", Quoted::new(text));
        got.extend(listed(seen, text).ok_or_else(malformed)?);
    }
    let claim = |container: &Container| match got.remove(container.name.as_str()) {
        Some(parts) if !parts.is_empty() => Some(Ok(Claimed { role: container.role, parts })),
        _ => seen.must_hold(container).then(|| Err(no_card(PRE_ALLOCATED, container))),
    };
    seen.pod.containers.iter().filter_map(claim).collect()
}

/// Reads `container[index_uuid_cores_memory,...];...`.
fn listed<'a>(seen: &Seen, text: &'a str) -> Option<Vec<(&'a str, Parts)>> {
    let mut listed = Vec::new();
    for field in text.split(';').map(str::trim).filter(|field| !field.is_empty()) {
        let (name, devices) = field.strip_suffix(']')?.split_once('[')?;
        let name = name.trim();
        let devices = devices.split(',').map(str::trim).filter(|device| !device.is_empty());
        let parts: Parts = devices.map(part).collect::<Option<_>>()?;
        let known = seen.pod.containers.iter().any(|container| container.name.as_str() == name);
        if !known && !parts.is_empty() {
            return None;
        }
        listed.push((name, parts));
    }
    Some(listed)
}

type Parts = Vec<(DeviceRef, Part)>;

fn part(device: &str) -> Option<(DeviceRef, Part)> {
    let (_index, rest) = device.split_once('_')?;
    let (rest, memory) = rest.rsplit_once('_')?;
    let (id, cores) = rest.rsplit_once('_')?;
    let memory = MemoryAsk::Exact(Mebibytes(memory.parse().ok()?));
    let part = Part::Share { cores: Cores(cores.parse().ok()?), memory };
    Some((DeviceRef::Id(DeviceId::parse(id).ok()?), part))
}
