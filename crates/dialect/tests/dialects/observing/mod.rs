//! What a pod that is already on a node holds, whoever placed it.

mod belief;
mod defects;
mod ours;
mod recognised;
mod refused_today;
mod round_trip;
mod tickets;
mod unreadable;

use model::Role::App;
use model::{Claim, Claimed, DeviceRef, Part, Role};

use crate::common::{BEFORE, Draft, claim, pod};

fn minor(number: u32) -> DeviceRef {
    DeviceRef::Minor(number)
}

fn index(number: u32) -> DeviceRef {
    DeviceRef::Index(number)
}

fn id(text: &str) -> DeviceRef {
    DeviceRef::Id(model::arb::device_id(text))
}

fn holds(role: Role, parts: &[(DeviceRef, Part)]) -> Claimed {
    Claimed { role, parts: parts.to_vec() }
}

/// What a pod with one claiming app container claims.
fn one(parts: &[(DeviceRef, Part)]) -> Claim {
    Claim::Shares(vec![holds(App, parts)])
}

/// What the ledger is told where it cannot count.
#[track_caller]
fn unreadable(draft: &Draft) -> String {
    match claim(draft) {
        Claim::Unreadable(why) => why,
        other => panic!("readable: {other:?}"),
    }
}

/// A running pod from before the take-over, with one container called `main`.
fn main(limits: crate::common::Amounts) -> Draft {
    pod().app("main", limits).bound(BEFORE)
}
