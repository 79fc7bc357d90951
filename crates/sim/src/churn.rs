//! After the cluster is full: pods leave by chance and others come.
//!
//! An event is one departure, each running pod as likely as any other, and then one arrival or,
//! three times in ten, two: each pod of the list is as likely as any other. So a little more
//! comes than leaves, the cluster stays full, and small pods creep into what large ones leave.
//! Allocation hides that. What shows it is which pods are turned away, so those that need
//! several cards or cards of one model are counted apart.

use std::collections::BTreeMap;

use crate::trace::TracePod;
use crate::world::World;

/// What came of the second half of the events, when the start no longer shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Churned {
    /// How many events there were in all.
    pub events: u64,
    /// Mean of the allocated compute, in percent of all.
    pub allocated: f64,
    /// Pods that came, by class; pods bound to a model count once more as [`TYPE_BOUND`].
    pub came: BTreeMap<&'static str, u64>,
    /// Those that found no place, likewise.
    pub rejected: BTreeMap<&'static str, u64>,
}

/// What pods bound to a model are counted under, beside their class.
pub const TYPE_BOUND: &str = "type-bound";

/// In tenths, how often a second pod comes.
const SECOND: u32 = 3;

/// Lets `events` pods leave and others come. `running`: node and pod of each that is there.
pub fn churn(
    world: &mut World,
    pods: &[TracePod],
    mut running: Vec<(usize, usize)>,
    events: u64,
    seed: u64,
) -> Churned {
    // Chance of its own: whatever the policy does, the same pods come.
    let mut coming = fastrand::Rng::with_seed(seed ^ 0x636f_6d65);
    let mut leaving = fastrand::Rng::with_seed(seed ^ 0x6c65_6176);
    let mut churned = Churned { events, ..Churned::default() };
    let warm = events / 2;
    let mut sum = 0.0;
    for event in 0..events {
        if !running.is_empty() {
            let (place, pod) = running.swap_remove(leaving.usize(..running.len()));
            world.leave(place, pod);
        }
        let arrivals = if coming.u32(..10) < SECOND { 2 } else { 1 };
        for _ in 0..arrivals {
            let next = coming.usize(..pods.len());
            let place = world.arrive(next).place;
            running.extend(place.map(|place| (place, next)));
            if event >= warm {
                churned.count(&pods[next], place.is_none());
            }
        }
        if event >= warm {
            sum += world.allocated();
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of events")]
    let counted = (events - warm) as f64;
    churned.allocated = sum / counted;
    churned
}

impl Churned {
    fn count(&mut self, pod: &TracePod, rejected: bool) {
        let bound = pod.is_type_bound().then_some(TYPE_BOUND);
        for class in [pod.class.as_str()].into_iter().chain(bound) {
            *self.came.entry(class).or_default() += 1;
            if rejected {
                *self.rejected.entry(class).or_default() += 1;
            }
        }
    }
}
