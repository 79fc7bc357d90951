//! The second check: whether what lives on the node leaves room for a container that is about to start.

use std::collections::BTreeMap;

use model::{DeviceId, Hold, Inventory, Mig, PodUid};

use crate::refusal::Refusal;

/// A pod that lives on the node, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    /// Which pod.
    pub pod: PodUid,
    /// Its name, or its UID where that is all that is left.
    pub name: String,
    /// What it holds, at its peak.
    pub holds: BTreeMap<DeviceId, Hold>,
}

/// Whether the pod may have `wanted` beside the others that live. Of several that are in the way
/// one is named.
pub fn room(
    inventory: &Inventory,
    pod: &PodUid,
    wanted: &BTreeMap<DeviceId, Hold>,
    living: &[Living],
) -> Result<(), Refusal> {
    for (id, hold) in wanted {
        let device = inventory.devices.iter().find(|device| device.id == *id);
        let device = device.ok_or_else(|| Refusal::NoSuchDevice { device: id.clone() })?;
        if device.mig != Mig::Off {
            return Err(Refusal::Cut { device: id.clone() });
        }
        if hold.cores > device.cores || hold.memory > device.memory {
            return Err(Refusal::TooLarge { device: id.clone() });
        }
        let (mut cores, mut memory) = (hold.cores, hold.memory);
        for other in living.iter().filter(|other| other.pod != *pod) {
            let Some(taken) = other.holds.get(id) else { continue };
            cores += taken.cores;
            memory += taken.memory;
            let alone = hold.whole || taken.whole;
            if alone || cores > device.cores || memory > device.memory {
                return Err(Refusal::Held { device: id.clone(), holder: other.name.clone() });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use model::{Cores, Mebibytes, Profile};
    use proptest::prelude::*;

    use super::*;

    fn id(card: usize) -> DeviceId {
        DeviceId::parse(&format!("GPU-{card}")).unwrap()
    }

    fn share(cores: u32, memory: u64) -> Hold {
        Hold { cores: Cores(cores), memory: Mebibytes(memory), whole: false }
    }

    fn whole() -> Hold {
        Hold { cores: Cores(100), memory: Mebibytes(15360), whole: true }
    }

    fn living(pod: &str, card: usize, hold: Hold) -> Living {
        let pod = PodUid::parse(pod).unwrap();
        Living { name: format!("team/{pod}"), pod, holds: [(id(card), hold)].into() }
    }

    fn check(card: usize, hold: Hold, living: &[Living]) -> Result<(), Refusal> {
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        room(&inventory, &PodUid::parse("me").unwrap(), &[(id(card), hold)].into(), living)
    }

    #[test]
    fn shares_fit_beside_one_another_until_the_card_is_full() {
        let held = Err(Refusal::Held { device: id(0), holder: "team/b".into() });
        let others = [living("a", 0, share(50, 5000)), living("b", 0, share(30, 5000))];
        assert_eq!(check(0, share(20, 5000), &others), Ok(()));
        assert_eq!(check(0, share(21, 5000), &others), held);
        assert_eq!(check(0, share(20, 5361), &others), held);
        assert_eq!(check(1, share(100, 15360), &others), Ok(()));
    }

    #[test]
    fn a_whole_card_is_had_alone() {
        assert!(check(0, whole(), &[living("a", 0, share(0, 1))]).is_err());
        assert!(check(0, share(0, 1), &[living("a", 0, whole())]).is_err());
        assert_eq!(check(0, whole(), &[living("me", 0, whole())]), Ok(()), "a restart");
    }

    #[test]
    fn what_no_card_has_is_refused() {
        assert_eq!(check(9, whole(), &[]), Err(Refusal::NoSuchDevice { device: id(9) }));
        assert_eq!(check(0, share(101, 1), &[]), Err(Refusal::TooLarge { device: id(0) }));
    }

    #[test]
    fn a_card_that_is_cut_is_not_handed_out() {
        let mut inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        std::sync::Arc::make_mut(&mut inventory.devices[0]).mig = Mig::Parent;
        let (me, wanted) = (PodUid::parse("me").unwrap(), [(id(0), whole())].into());
        let cut = Err(Refusal::Cut { device: id(0) });
        assert_eq!(room(&inventory, &me, &wanted, &[]), cut);
    }

    proptest! {
        #[test]
        fn whoever_is_let_in_leaves_the_card_within_its_bounds(
            asks in prop::collection::vec((0u32..60, 0u64..9000, prop::bool::weighted(0.1)), 1..12),
        ) {
            let mut living_now: Vec<Living> = Vec::new();
            for (n, (cores, memory, alone)) in asks.into_iter().enumerate() {
                let hold = if alone { whole() } else { share(cores, memory) };
                if check(0, hold, &living_now).is_ok() {
                    living_now.push(living(&format!("p{n}"), 0, hold));
                }
            }
            let sum = |f: &dyn Fn(&Hold) -> u64| living_now.iter().map(|l| f(&l.holds[&id(0)])).sum::<u64>();
            prop_assert!(sum(&|h| u64::from(h.cores.0)) <= 100 && sum(&|h| h.memory.0) <= 15360);
            let alone = living_now.iter().any(|l| l.holds[&id(0)].whole);
            prop_assert!(!alone || living_now.len() == 1);
        }
    }
}
