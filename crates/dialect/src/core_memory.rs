//! nano-gpu's first form and elastic-gpu: `gpu-core`, 100 a card, and `gpu-memory`.
//!
//! Either alone is legal: memory alone promises no compute, compute alone stands for both. Where a
//! node has more memory than tickets can count it is only measured, and memory alone is refused
//! there: the agent would never be asked for such a container.

use model::{Claimed, Container, Cores, Mebibytes, MemoryAsk};

use crate::asking::{Alone, Ask, Percent, Speaks, memory, memory_ignored, percent, positive};
use crate::by_name::ByName;
use crate::observing::Seen;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::writing::{EnvOf, Writer, Writing};

/// A dialect that counts cores and memory apart.
pub(crate) struct CoreMemory {
    /// Both draw kubelet tickets, because a container may ask for either alone.
    resources: &'static [&'static str; 2],
    /// What tickets of memory are called that are drawn by who asks for no compute.
    memory_alone: &'static str,
    unit: Mebibytes,
    memory_hint: &'static str,
    keys: ByName,
    /// Whether the original dropped what exceeds whole cards.
    floors: bool,
}

/// nano-gpu's first form. It never said what a unit of memory is; its examples fit GiB.
pub(crate) const NANO_IO: CoreMemory = CoreMemory {
    resources: &["nano-gpu.io/gpu-core", "nano-gpu.io/gpu-memory"],
    memory_alone: "nano-gpu.io/gpu-memory without nano-gpu.io/gpu-core",
    unit: Mebibytes(1024),
    memory_hint: "it counts GiB of one card",
    keys: ByName { assumed: "nano-gpu.io/gpu", container: "nano-gpu.io/gpu-", once: &[] },
    floors: false,
};

/// elastic-gpu as its agent and README spell it.
pub(crate) const ELASTIC: CoreMemory = CoreMemory {
    resources: &["elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"],
    memory_alone: "elasticgpu.io/gpu-memory without elasticgpu.io/gpu-core",
    unit: Mebibytes(1),
    memory_hint: "it counts MiB of one card",
    keys: ByName {
        assumed: "elasticgpu.io/assumed",
        container: "elasticgpu.io/container-",
        once: &[],
    },
    floors: true,
};

/// elastic-gpu as its scheduler once spelled the resources.
pub(crate) const ELASTIC_COM: CoreMemory = CoreMemory {
    resources: &["elasticgpu.com/gpu-core", "elasticgpu.com/gpu-memory"],
    memory_alone: "elasticgpu.com/gpu-memory without elasticgpu.com/gpu-core",
    ..ELASTIC
};

impl Speaks for CoreMemory {
    fn identities(&self) -> &'static [&'static str] {
        self.resources
    }

    fn measures(&self) -> &'static [&'static str] {
        &[]
    }

    fn alone(&self) -> Option<Alone> {
        let &[beside, resource] = self.resources;
        Some(Alone { resource, beside, tickets: self.memory_alone })
    }

    fn ask(
        &self,
        container: &Container,
        settings: &Settings,
        notes: &mut Vec<String>,
    ) -> Result<Option<Ask>, Refusal> {
        let &[core, mem] = self.resources;
        let cores = positive(container, core, notes)?;
        let units = positive(container, mem, notes)?;
        let exact = match units {
            Some(units) => Some(memory(container, mem, units, self.unit, self.memory_hint)?),
            None => None,
        };
        let Some(mut cores) = cores else {
            let memory_only = |exact| Ask::share(1, Cores::ZERO, MemoryAsk::Exact(exact));
            return Ok(exact.map(memory_only));
        };
        if self.floors && settings.elastic_floors && cores > 100 && !cores.is_multiple_of(100) {
            let name = &container.name;
            notes.push(format!(
                "container {name} asks for {cores} {core}; what exceeds whole cards is dropped"
            ));
            cores -= cores % 100;
        }
        Ok(Some(match percent(container, core, cores)? {
            Percent::Whole(cards) => {
                if exact.is_some() {
                    notes.push(memory_ignored(container, mem));
                }
                Ask::whole(cards)
            }
            Percent::Share(cores) => {
                Ask::share(1, cores, exact.map_or(MemoryAsk::Percent(cores), MemoryAsk::Exact))
            }
        }))
    }

    fn write(&self, writing: &Writing, out: &mut Writer) {
        self.keys.write(writing, out);
    }

    fn env(&self, of: &EnvOf) -> Vec<(String, String)> {
        vec![("GPU".into(), of.ids_hash.into())]
    }

    fn early_env(&self, _tickets: usize, ids_hash: &str) -> Vec<(String, String)> {
        vec![("GPU".into(), ids_hash.into())]
    }

    fn recognise(&self, seen: &Seen) -> Option<Result<Vec<Claimed>, String>> {
        self.keys.recognise(seen)
    }
}
