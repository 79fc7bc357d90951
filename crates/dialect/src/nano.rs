//! nano-gpu: `nano-gpu/gpu-percent`, 100 a card.
//!
//! Percent alone stands for compute and memory both. Beyond the original, multiples of 100 are
//! that many whole cards, and `nano-gpu/gpu-memory` in MiB may say the memory apart.

use model::{Claimed, Container, Mebibytes, MemoryAsk};

use crate::asking::{Ask, Percent, Speaks, half, memory, memory_ignored, percent, positive};
use crate::by_name::ByName;
use crate::observing::Seen;
use crate::refusal::Refusal;
use crate::settings::Settings;
use crate::writing::{EnvOf, Writer, Writing};

const PERCENT: &str = "nano-gpu/gpu-percent";
const MEMORY: &str = "nano-gpu/gpu-memory";
const KEYS: ByName = ByName {
    assumed: "nano-gpu/assume",
    container: "nano-gpu/container-",
    // What the agent wrote while it was being renamed.
    once: &[("elastic-gpu/assume", "elastic-gpu/container-")],
};

/// The dialect of nano-gpu, and our own.
pub(crate) struct Nano;

impl Speaks for Nano {
    fn identities(&self) -> &'static [&'static str] {
        &[PERCENT]
    }

    fn measures(&self) -> &'static [&'static str] {
        &[MEMORY]
    }

    fn ask(
        &self,
        container: &Container,
        _settings: &Settings,
        notes: &mut Vec<String>,
    ) -> Result<Option<Ask>, Refusal> {
        let wanted = positive(container, PERCENT, notes)?;
        let mebibytes = positive(container, MEMORY, notes)?;
        let Some(wanted) = wanted else {
            return if mebibytes.is_some() {
                Err(half(container, MEMORY, PERCENT))
            } else {
                Ok(None)
            };
        };
        let ask = match percent(container, PERCENT, wanted)? {
            Percent::Whole(cards) => {
                if mebibytes.is_some() {
                    notes.push(memory_ignored(container, MEMORY));
                }
                Ask::whole(cards)
            }
            Percent::Share(cores) => {
                let memory = match mebibytes {
                    Some(value) => MemoryAsk::Exact(memory(
                        container,
                        MEMORY,
                        value,
                        Mebibytes(1),
                        "it counts MiB of one card",
                    )?),
                    None => MemoryAsk::Percent(cores),
                };
                Ask::share(1, cores, memory)
            }
        };
        Ok(Some(ask))
    }

    fn write(&self, writing: &Writing, out: &mut Writer) {
        KEYS.write(writing, out);
    }

    fn env(&self, of: &EnvOf) -> Vec<(String, String)> {
        let count = of.container.asks(PERCENT).unwrap_or_default().to_owned();
        vec![("GPU".into(), of.ids_hash.into()), ("ku".into(), count)]
    }

    fn early_env(&self, tickets: usize, ids_hash: &str) -> Vec<(String, String)> {
        vec![("GPU".into(), ids_hash.into()), ("ku".into(), tickets.to_string())]
    }

    fn recognise(&self, seen: &Seen) -> Option<Result<Vec<Claimed>, String>> {
        KEYS.recognise(seen)
    }
}
