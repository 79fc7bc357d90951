//! What agents measure on their cards, calmed so that small changes change nothing.

use std::collections::BTreeMap;

use model::{Cores, DeviceId, DeviceState, Load, Mebibytes};

/// What an agent measured on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    /// How busy its compute is, in percent.
    pub busy: Cores,
    /// Memory that processes of no pod of ours hold.
    pub strangers: Mebibytes,
}

/// A device becomes hot when it is this much busier than what was sold of it.
const HOT_FROM: Cores = Cores(30);
/// And stays hot until it is no more than this much busier.
const COOL_BELOW: Cores = Cores(15);
/// Strangers' memory counts in blocks of this.
const BLOCK: u64 = 256;

/// The load of a node's devices after a report, given what it was before. Devices the report
/// does not name are cool and free of strangers.
pub(crate) fn calmed(
    report: &[(DeviceId, Measured)],
    before: &BTreeMap<DeviceId, Load>,
    devices: &[DeviceState],
) -> BTreeMap<DeviceId, Load> {
    let of = |(id, measured): &(DeviceId, Measured)| {
        let was = before.get(id).copied().unwrap_or_default();
        let state = devices.iter().find(|state| state.device.id == *id);
        let sold = state.map_or(Cores::ZERO, |state| state.used.hold.cores);
        let excess = measured.busy.saturating_sub(sold);
        let load = Load {
            strangers: strangers(measured.strangers, was.strangers),
            hot: if was.hot { excess > COOL_BELOW } else { excess >= HOT_FROM },
        };
        (id.clone(), load)
    };
    report.iter().map(of).filter(|(_, load)| *load != Load::default()).collect()
}

/// More is counted at once, in whole blocks; less only when a whole block more has come free, so
/// that a process at the edge of a block does not make memory come and go.
fn strangers(now: Mebibytes, was: Mebibytes) -> Mebibytes {
    let blocks = |memory: u64| memory.div_ceil(BLOCK).saturating_mul(BLOCK);
    let counted = blocks(now.0);
    let calm = blocks(now.0.saturating_add(BLOCK));
    if counted >= was.0 || calm < was.0 || now.is_zero() { Mebibytes(counted) } else { was }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_grow_at_once_and_shrink_by_blocks() {
        let steps = [(1, 0, 256), (300, 256, 512), (250, 512, 512), (257, 512, 512), (1, 768, 256)];
        for (now, was, expected) in steps {
            assert_eq!(
                strangers(Mebibytes(now), Mebibytes(was)),
                Mebibytes(expected),
                "{now} {was}"
            );
        }
        assert_eq!(strangers(Mebibytes(0), Mebibytes(256)), Mebibytes(0));
        assert_eq!(strangers(Mebibytes::MAX, Mebibytes(0)), Mebibytes::MAX);
    }
}
