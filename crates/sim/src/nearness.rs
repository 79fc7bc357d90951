//! How near to one another the cards of a pod are that has several.

use model::{Affinity, Places, Topology};
use serde::Serialize;

use crate::trace::TracePod;

/// What became of the pods that ask for several cards of wired nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Nearness {
    /// Pods that came and require near cards.
    required: u64,
    /// Those of them that found no place.
    rejected: u64,
    /// Pods that found a place and prefer near cards.
    preferring: u64,
    /// Those of them that got what they prefer.
    as_preferred: u64,
    /// Pods that found a place, whatever they wish.
    placed: u64,
    /// The sum of the quality of their links.
    quality: f64,
}

/// The same over several seeds.
#[derive(Debug, Clone, Serialize)]
pub struct NearnessReport {
    /// Pods that came and require near cards, mean over the seeds.
    pub required: f64,
    /// How many percent of them found no place.
    pub rejected_percent: f64,
    /// Of the placed pods that prefer near cards, how many percent got them.
    pub as_preferred_percent: f64,
    /// The links between the cards of placed pods: 100 if every two are joined by `NVLink`, 50 on
    /// one PCIe switch, 10 across sockets; mean over the pods.
    pub link_quality: f64,
}

impl Nearness {
    /// Counts a pod that came, and the cards it got, if it got any.
    pub fn count(&mut self, pod: &TracePod, got: Option<(&Topology, Places)>) {
        if pod.request.containers.iter().all(|container| container.cards <= 1) {
            return;
        }
        let affinity = pod.request.affinity;
        if let Affinity::Require(_) = affinity {
            self.required += 1;
            self.rejected += u64::from(got.is_none());
        }
        let Some((topology, cards)) = got else { return };
        self.placed += 1;
        self.quality += quality(topology, cards);
        if let Affinity::Prefer(near) = affinity {
            self.preferring += 1;
            self.as_preferred += u64::from(topology.is_near(near, cards));
        }
    }

    fn wishes(&self) -> u64 {
        self.required + self.preferring
    }
}

impl NearnessReport {
    /// Over several runs; nothing if no pod had a wish.
    #[expect(clippy::cast_precision_loss, reason = "counts of pods")]
    pub fn new(runs: &[Nearness]) -> Option<Self> {
        let sum = |of: fn(&Nearness) -> u64| runs.iter().map(of).sum::<u64>() as f64;
        if sum(Nearness::wishes) == 0.0 {
            return None;
        }
        let percent = |part: f64, all: f64| part * 100.0 / all.max(1.0);
        Some(Self {
            required: sum(|run| run.required) / runs.len() as f64,
            rejected_percent: percent(sum(|run| run.rejected), sum(|run| run.required)),
            as_preferred_percent: percent(sum(|run| run.as_preferred), sum(|run| run.preferring)),
            link_quality: runs.iter().map(|run| run.quality).sum::<f64>()
                / sum(|run| run.placed).max(1.0),
        })
    }
}

/// The mean over all pairs of what their link counts, where more than one `NVLink` is no more than
/// one: else a machine with many would hide all others.
fn quality(topology: &Topology, cards: Places) -> f64 {
    let pairs = || {
        let before = move |one| cards.into_iter().filter(move |other| *other < one);
        cards.into_iter().flat_map(move |one| before(one).map(move |other| (one, other)))
    };
    let sum: u32 = pairs().map(|(one, other)| topology.pair(one, other).min(100)).sum();
    #[expect(clippy::cast_precision_loss, reason = "at most 64 cards")]
    let count = pairs().count().max(1) as f64;
    f64::from(sum) / count
}
