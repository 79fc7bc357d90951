//! What goes back onto a pod and into its containers: dialect by dialect, to the letter.

mod by_name;
mod gpushare;
mod hami;
mod limits;
mod vcuda;
mod vgpu_manager;
mod visible;

use dialect::{Settings, Written};
use model::Placement;
use model::Role::{App, Init};

use crate::common::{Amounts, Draft, all_of, cards, place, pod, share, write};
use crate::kubernetes::accepts;

/// A pod with an init container, a share, a container without a card and two whole cards.
fn four(share: Amounts, two: Amounts) -> Draft {
    pod().init("fetch", share).app("main", share).app("idle", &[]).app("pair", two)
}

/// Its place: device nodes 5, 6, and 4 before 7.
fn four_placed(cores: u32, memory: u64) -> Placement {
    place(&[
        ("fetch", Init, &[share(2, cores, memory)]),
        ("main", App, &[share(1, cores, memory)]),
        ("pair", App, &[all_of(3), all_of(0)]),
    ])
}

/// What is written where there is room and every card is known.
#[track_caller]
fn written(draft: &Draft, placement: &Placement) -> Written {
    let written = write(draft, placement, &cards(), &Settings::all_dialects()).expect("room");
    accepts(&written);
    assert_eq!(written.omitted, []);
    written
}
