//! HAMi: `nvidia.com/gpu` cards, and of each `gpumem` MiB or `gpumem-percentage`, `gpucores`.
//!
//! Spoken only where the administrator says so: `nvidia.com/gpu` usually belongs to NVIDIA.

use std::fmt::Write;
use std::iter::repeat;

use model::ids::Quoted;
use model::{
    Claimed, Container, Cores, DeviceId, DeviceRef, Mebibytes, MemoryAsk, Part, Pod, Portion, Role,
};

use crate::Missing;
use crate::asking::{Ask, Speaks, cards, half, memory, memory_ignored, positive};
use crate::observing::{Seen, no_card};
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::writing::{EnvOf, Writer, Writing};

const GPU: &str = "nvidia.com/gpu";
const MEM: &str = "nvidia.com/gpumem";
const MEM_PERCENT: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";
const NODE: &str = "hami.io/vgpu-node";
const TIME: &str = "hami.io/vgpu-time";
const BIND_TIME: &str = "hami.io/bind-time";
const BIND_PHASE: &str = "hami.io/bind-phase";
const TO_ALLOCATE: &str = "hami.io/vgpu-devices-to-allocate";
const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
const VENDOR: &str = "NVIDIA";
const PERCENTAGE: &str = "1 to 100";

/// The dialect of HAMi.
pub(crate) struct Hami;

impl Speaks for Hami {
    fn identities(&self) -> &'static [&'static str] {
        &[GPU]
    }

    fn measures(&self) -> &'static [&'static str] {
        &[MEM, MEM_PERCENT, CORES]
    }

    fn ask(
        &self,
        container: &Container,
        _settings: &Settings,
        notes: &mut Vec<String>,
    ) -> Result<Option<Ask>, Refusal> {
        let wanted = positive(container, GPU, notes)?;
        let exact = positive(container, MEM, notes)?;
        let part = percentage(container, MEM_PERCENT, notes)?;
        let cores = percentage(container, CORES, notes)?;
        let Some(wanted) = wanted else {
            let asked =
                [(exact.is_some(), MEM), (part.is_some(), MEM_PERCENT), (cores.is_some(), CORES)];
            let stray = asked.into_iter().find(|(asked, _)| *asked);
            return stray.map_or(Ok(None), |(_, has)| Err(half(container, has, GPU)));
        };
        let count = cards(container, GPU, wanted, "it counts cards")?;
        if cores == Some(Cores::CARD) || (cores, exact, part) == (None, None, None) {
            if exact.is_some() || part.is_some() {
                notes.push(memory_ignored(
                    container,
                    if exact.is_some() { MEM } else { MEM_PERCENT },
                ));
            }
            return Ok(Some(Ask::whole(count)));
        }
        let memory = match (exact, part) {
            (Some(value), part) => {
                if part.is_some() {
                    let name = &container.name;
                    notes.push(format!(
                        "container {name} asks for {MEM}; its {MEM_PERCENT} is ignored"
                    ));
                }
                let hint = "it counts MiB of each card";
                MemoryAsk::Exact(memory(container, MEM, value, Mebibytes(1), hint)?)
            }
            (None, part) => MemoryAsk::Percent(part.unwrap_or(Cores::CARD)),
        };
        Ok(Some(Ask::share(count, cores.unwrap_or_default(), memory)))
    }

    fn write(&self, writing: &Writing, out: &mut Writer) {
        let seconds = (writing.now.0 / 1_000_000_000).to_string();
        let apps = writing.pod.containers.iter().filter(|c| c.role == Role::App);
        let mut devices = String::new();
        for container in apps {
            for (card, portion) in writing.grants(&container.name) {
                let hold = portion.hold(card);
                let (memory, cores) = (hold.memory.0, hold.cores.0);
                let _ = write!(devices, "{},{VENDOR},{memory},{cores}:", card.id);
            }
            devices.push(';');
        }
        out.annotate(NODE, writing.placement.node().as_str());
        out.annotate(TIME, &seconds);
        out.annotate(BIND_TIME, &seconds);
        out.annotate(BIND_PHASE, "allocating");
        out.annotate(TO_ALLOCATE, &devices);
        out.annotate(ALLOCATED, &devices);
    }

    /// For programs that look at them. Nothing of ours takes a limit from the environment.
    fn env(&self, of: &EnvOf) -> Vec<(String, String)> {
        let mut env = Vec::new();
        for (i, (_, portion)) in of.grants().enumerate() {
            let Portion::Share(share) = portion else { continue };
            env.push((format!("CUDA_DEVICE_MEMORY_LIMIT_{i}"), format!("{}m", share.memory.0)));
            if i == 0 {
                env.push(("CUDA_DEVICE_SM_LIMIT".into(), share.cores.0.to_string()));
            }
        }
        env
    }

    fn recognise(&self, seen: &Seen) -> Option<Result<Vec<Claimed>, String>> {
        let text = seen.pod.annotations.get(ALLOCATED)?;
        Some(allocated(seen, text))
    }
}

/// Containers that ask for parts of cards but not for a card. HAMi's own webhook adds one.
pub(crate) fn missing(pod: &Pod) -> Vec<Missing> {
    let lacks = |container: &Container| {
        let asks = |name: &&str| container.asks(name).is_some();
        container.asks(GPU).is_none() && [MEM, MEM_PERCENT, CORES].iter().any(asks)
    };
    let containers = pod.containers.iter().enumerate().filter(|(_, container)| lacks(container));
    containers.map(|(container, _)| Missing { container, resource: GPU, value: "1" }).collect()
}

/// Reads `uuid,vendor,mem,cores:` for each card and `;` behind each container.
fn allocated(seen: &Seen, text: &str) -> Result<Vec<Claimed>, String> {
    let malformed = || format!("annotation {ALLOCATED} is malformed at {}", Quoted::new(text));
    let fields: Vec<&str> = text.strip_suffix(';').unwrap_or(text).split(';').collect();
    // Releases that count init containers list them first, others leave them out.
    let all = &seen.pod.containers;
    let apps = all.iter().filter(|container| container.role == Role::App);
    let containers: Vec<&Container> =
        if fields.len() == all.len() { all.iter().collect() } else { apps.collect() };
    if fields.len() > containers.len() {
        return Err(malformed());
    }
    let mut claimed = Vec::new();
    // Releases that join by `;` leave off what is empty at the end.
    for (container, field) in containers.into_iter().zip(fields.into_iter().chain(repeat(""))) {
        let mut parts = Vec::new();
        for device in field.split(':').filter(|device| !device.is_empty()) {
            let mut columns = device.split(',');
            let id =
                columns.next().and_then(|id| DeviceId::parse(id).ok()).ok_or_else(malformed)?;
            let mut number = columns.skip(1).map(|text| text.trim().parse::<u64>().ok());
            let mut next = || number.next().flatten();
            let (memory, cores) = next().zip(next()).ok_or_else(malformed)?;
            let cores = Cores(u32::try_from(cores).map_err(|_| malformed())?);
            let memory = MemoryAsk::Exact(Mebibytes(memory));
            // All the compute meant the card for oneself, whatever the memory.
            let whole = cores >= Cores::CARD;
            let part = if whole { Part::Whole } else { Part::Share { cores, memory } };
            parts.push((DeviceRef::Id(id), part));
        }
        if !parts.is_empty() {
            claimed.push(Claimed { role: container.role, parts });
        } else if seen.must_hold(container) {
            return Err(no_card(ALLOCATED, container));
        }
    }
    Ok(claimed)
}

fn percentage(
    container: &Container,
    resource: &'static str,
    notes: &mut Vec<String>,
) -> Result<Option<Cores>, Refusal> {
    let Some(value) = positive(container, resource, notes)? else { return Ok(None) };
    match u32::try_from(value) {
        Ok(cores) if cores <= Cores::CARD.0 => Ok(Some(Cores(cores))),
        _ => Err(Refusal::OutOfRange {
            container: container.name.clone(),
            resource,
            value,
            must: PERCENTAGE,
        }),
    }
}
