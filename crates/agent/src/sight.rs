//! Whether the processes that the driver names can be matched with those of the node at all.
//!
//! A driver may name only processes that the asker's PID namespace shows, and `/proc` may be
//! another's than the host's. Then pods look as if they used nothing, and what they use as if it
//! were strangers'. An agent that cannot see takes nothing off what can be sold but what all
//! placements together do not explain, and lets containers tell of themselves.

use std::collections::BTreeSet;

use gpu::Measured;
use model::{DeviceId, PodUid};

use crate::picture::{Counted, Counts};
use crate::usage::{CONTEXT, CONTEXTS, Explained, Named, Stranger, Use};

/// What one look at the cards says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// A process of a pod was named and recognised.
    Sees,
    /// Somebody uses a card, and nobody who does is recognised.
    Blind,
    /// Nobody who would have to be seen uses a card.
    Nothing,
}

/// What is believed, look after look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sight {
    blind: bool,
    doubted: bool,
}

impl Sight {
    /// Whether processes cannot be seen.
    pub fn is_blind(self) -> bool {
        self.blind
    }

    /// One more look. Says whether what is believed changed: to see takes one look, to be blind two in
    /// a row, since a process may have ended while it was looked at.
    pub fn look(&mut self, hint: Hint) -> bool {
        let before = self.blind;
        match hint {
            Hint::Sees => *self = Self::default(),
            Hint::Blind => {
                self.blind |= self.doubted;
                self.doubted = true;
            }
            Hint::Nothing => self.doubted = false,
        }
        self.blind != before
    }
}

/// What a look says. `living` are the pods that have processes on the node; it is asked only if
/// something depends on it, and so are containers of what they count.
pub fn hint(
    measured: &[Measured],
    explained: &Explained,
    counted: &Counts,
    living: impl FnOnce() -> BTreeSet<PodUid>,
) -> Hint {
    let Named { within, outside, unknown } = explained.named;
    if within > 0 {
        return Hint::Sees;
    }
    if unknown > 0 && outside == 0 {
        return Hint::Blind;
    }
    let hidden: Vec<&Measured> = measured.iter().filter(|card| unnamed(card) > 0).collect();
    let tenants = |card: &Measured| explained.uses.iter().any(|one| one.device == card.device);
    if !hidden.iter().any(|card| tenants(card)) {
        return Hint::Nothing;
    }
    let (living, counted) = (living(), counted.get());
    let lives = |one: &&Use| living.contains(&one.pod);
    let used = hidden.iter().any(|card| {
        let here = || explained.uses.iter().filter(|one| one.device == card.device).filter(lives);
        let said = here().filter_map(|one| said(one, counted)).fold(0, u64::saturating_add);
        let memory = unnamed(card);
        // What containers count themselves is there and of nobody; or, where they count nothing,
        // more is than a driver keeps for itself.
        (said > 0 && memory >= said / 2) || (here().next().is_some() && memory > keeps(card))
    });
    if used { Hint::Blind } else { Hint::Nothing }
}

/// Memory of a card that no process holds which the driver names.
fn unnamed(card: &Measured) -> u64 {
    let named = card.processes.iter().map(|process| process.used).fold(0, u64::saturating_add);
    card.used.saturating_sub(named)
}

/// More than drivers keep for themselves of a card of this size.
fn keeps(card: &Measured) -> u64 {
    (1 << 30) + card.total / 32
}

/// What a container says it holds of the device, if that can be: no more than it may.
fn said(one: &Use, counted: &[Counted]) -> Option<u64> {
    let own = counted.iter().find(|counted| {
        counted.device == one.device
            && counted.pod_name == one.pod_name
            && Some(counted.container.as_str()) == one.container.as_deref()
    });
    let counters = own?.counters.filter(|counters| !counters.implausible)?;
    Some(counters.memory.min(one.limit))
}

/// What can be said without seeing processes: containers use what they say, and strange is what
/// lives outside of all pods, and what no sum of placements explains.
pub fn without_seeing(
    measured: &[Measured],
    explained: &Explained,
    counted: &[Counted],
    is_outside: &dyn Fn(u32) -> bool,
) -> (Vec<Use>, Vec<Stranger>) {
    let told = |one: &Use| Use { used: said(one, counted).unwrap_or(one.used), ..one.clone() };
    let outside = explained
        .strangers
        .iter()
        .filter(|stranger| stranger.pod.is_none() && stranger.pid.is_some_and(is_outside));
    let mut strangers: Vec<Stranger> = outside.cloned().collect();
    for card in measured {
        let outside = strangers.iter().filter(|stranger| stranger.device == card.device);
        let outside: u64 = outside.map(|stranger| stranger.memory).fold(0, u64::saturating_add);
        let placed = placed(&card.device, &explained.uses);
        let memory = card.used.saturating_sub(outside).saturating_sub(placed);
        if memory > 0 {
            let device = card.device.clone();
            strangers.push(Stranger { device, pid: None, pod: None, memory, above_limit: false });
        }
    }
    (explained.uses.iter().map(told).collect(), strangers)
}

/// What all placements on a device explain together, with contexts, and one more for the driver.
fn placed(device: &DeviceId, uses: &[Use]) -> u64 {
    let contexts = CONTEXT.saturating_mul(CONTEXTS as u64);
    let here = uses.iter().filter(|one| one.device == *device);
    here.map(|one| one.limit.saturating_add(contexts)).fold(CONTEXT, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use gpu::Process;

    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn device() -> DeviceId {
        DeviceId::parse("GPU-1").unwrap()
    }

    fn pod() -> PodUid {
        PodUid::parse("a").unwrap()
    }

    fn card(used: u64, processes: &[(u32, u64)]) -> Measured {
        let process = |(pid, used): &(u32, u64)| Process { pid: *pid, used: *used, busy: 0 };
        Measured {
            device: device(),
            used,
            total: 15 * GIB,
            busy: None,
            processes: processes.iter().map(process).collect(),
        }
    }

    /// A container that may have 4 GiB, beside processes that are known so.
    fn explained(named: Named) -> Explained {
        let one = Use {
            device: device(),
            pod: pod(),
            pod_name: "team/a".into(),
            container: Some("main".into()),
            used: 0,
            limit: 4 * GIB,
            busy: 0,
            cores: 30,
            pids: vec![],
        };
        Explained { uses: vec![one], strangers: vec![], named }
    }

    fn says(memory: u64, implausible: bool) -> Vec<Counted> {
        let counters = page::Counters { memory, implausible, ..page::Counters::default() };
        vec![Counted {
            pod_name: "team/a".into(),
            container: "main".into(),
            device: device(),
            counters: Some(counters),
        }]
    }

    fn seen(card: Measured, named: Named, counted: &[Counted]) -> Hint {
        hint(&[card], &explained(named), &counted.to_vec().into(), || [pod()].into())
    }

    #[test]
    fn one_process_of_a_pod_suffices_to_see() {
        let named = Named { within: 1, outside: 0, unknown: 3 };
        assert_eq!(seen(card(9 * GIB, &[]), named, &says(GIB, false)), Hint::Sees);
    }

    #[test]
    fn processes_that_are_not_on_the_node_are_not_seen() {
        let unknown = Named { unknown: 2, ..Named::default() };
        assert_eq!(seen(card(GIB, &[(7, GIB)]), unknown, &[]), Hint::Blind);
        let some = Named { outside: 1, unknown: 1, ..Named::default() };
        let both = card(2 * GIB, &[(7, GIB), (8, GIB)]);
        assert_eq!(seen(both, some, &[]), Hint::Nothing, "one ended just now");
    }

    #[test]
    fn memory_that_containers_count_and_no_process_holds_is_not_seen() {
        let none = Named::default();
        assert_eq!(seen(card(800 * MIB, &[]), none, &says(500 * MIB, false)), Hint::Blind);
        assert_eq!(seen(card(800 * MIB, &[]), none, &says(0, false)), Hint::Nothing);
        assert_eq!(seen(card(0, &[]), none, &says(500 * MIB, false)), Hint::Nothing, "a leftover");
        // Somebody outside of all pods is seen, and holds all there is.
        let outside = Named { outside: 1, ..none };
        let all = card(800 * MIB, &[(7, 800 * MIB)]);
        assert_eq!(seen(all, outside, &says(500 * MIB, false)), Hint::Nothing);
    }

    #[test]
    fn where_nothing_is_counted_it_takes_more_than_a_driver_keeps() {
        assert_eq!(seen(card(700 * MIB, &[]), Named::default(), &[]), Hint::Nothing);
        assert_eq!(seen(card(2 * GIB, &[]), Named::default(), &[]), Hint::Blind);
        let (known, none) = (explained(Named::default()), Counts::default());
        let nobody = hint(&[card(2 * GIB, &[])], &known, &none, BTreeSet::new);
        assert_eq!(nobody, Hint::Nothing, "no process of the pod lives");
    }

    #[test]
    fn it_takes_two_looks_to_be_blind_and_one_to_see() {
        let mut sight = Sight::default();
        assert!(!sight.look(Hint::Blind) && !sight.look(Hint::Nothing) && !sight.look(Hint::Blind));
        assert!(sight.look(Hint::Blind) && sight.is_blind());
        assert!(!sight.look(Hint::Nothing) && sight.is_blind(), "an idle node proves nothing");
        assert!(sight.look(Hint::Sees) && !sight.is_blind());
    }

    #[test]
    fn without_seeing_containers_tell_of_themselves_within_their_limits() {
        let of = |counted: &[Counted]| {
            let explained = explained(Named::default());
            without_seeing(&[card(3 * GIB, &[])], &explained, counted, &|_| false)
        };
        let (uses, strangers) = of(&says(2 * GIB, false));
        assert_eq!((uses[0].used, strangers.len()), (2 * GIB, 0));
        assert_eq!(of(&says(9 * GIB, false)).0[0].used, 4 * GIB, "no more than it may have");
        assert_eq!(of(&says(9 * GIB, true)).0[0].used, 0, "not believed");
    }

    #[test]
    fn what_placements_do_not_explain_is_strange_all_the_same() {
        let mut explained = explained(Named::default());
        let stranger = |pid: u32, memory: u64| Stranger {
            device: device(),
            pid: Some(pid),
            pod: None,
            memory,
            above_limit: false,
        };
        explained.strangers = vec![stranger(7, GIB), stranger(8, 2 * GIB)];
        let used = 4 * GIB + 3 * CONTEXT + GIB + 5;
        let (_, strangers) = without_seeing(&[card(used, &[])], &explained, &[], &|pid| pid == 7);
        let rest = Stranger { pid: None, ..stranger(0, 5) };
        assert_eq!(strangers, [stranger(7, GIB), rest], "process 8 cannot be told from a pod's");
    }
}
