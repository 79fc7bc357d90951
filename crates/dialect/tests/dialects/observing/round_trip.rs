//! What we write for a dialect's tools, that dialect's reader understands.

use dialect::{Dialect, Settings};
use model::Role::App;
use model::{
    Claim, Claimed, ContainerPlacement, Device, DeviceId, DeviceRef, Grant, Hold, Part, Placement,
};

use crate::common::{BEFORE, Draft, cards, claim, place_asked, pod, write};
use crate::examples::{PAIRS, SHARES};

/// What a container holds, card by card.
type Held = Vec<(DeviceId, Hold)>;

/// What was placed, and the claim once that is written, bound, and our own placement gone.
fn told_by_the_dialect_alone(draft: &Draft) -> (Placement, Vec<Claimed>) {
    let placement = place_asked(&draft.read(), &cards());
    let written = write(draft, &placement, &cards(), &Settings::all_dialects()).expect("room");
    let mut draft = draft.clone().bound(BEFORE);
    for (key, value) in &written.annotations {
        draft = draft.annotate(key, value);
    }
    assert_eq!(claim(&draft), Claim::of(&placement), "ours first");
    draft = draft.without("nano-gpu/placement");
    let Claim::Shares(claimed) = claim(&draft) else { panic!("{:?}", claim(&draft)) };
    (placement, claimed)
}

/// The one card that `is_it`.
fn find(is_it: impl Fn(&Device) -> bool) -> Device {
    let mut found = cards().into_iter().filter(is_it);
    let card = found.next().expect("a card of the node");
    assert_eq!(found.next(), None, "one card only");
    card
}

fn placed(container: &ContainerPlacement) -> Held {
    let hold = |grant: &Grant| {
        let card = find(|card| card.id == grant.device);
        (card.id.clone(), grant.portion.hold(&card))
    };
    container.grants.iter().map(hold).collect()
}

fn recognised(claimed: &Claimed) -> Held {
    let hold = |(reference, part): &(DeviceRef, Part)| {
        let card = find(|card| reference.is(card));
        (card.id.clone(), part.of(&card).hold(&card))
    };
    claimed.parts.iter().map(hold).collect()
}

/// vgpu-manager has no word for a whole card: it is all the compute and all the memory.
fn in_words_of(dialect: Dialect, mut held: Held) -> Held {
    if dialect == Dialect::VgpuManager {
        for (_, hold) in &mut held {
            hold.whole = false;
        }
    }
    held
}

fn check(dialect: Dialect, draft: &Draft) {
    let (placement, claimed) = told_by_the_dialect_alone(draft);
    let expected: Vec<Held> =
        placement.containers().iter().map(|c| in_words_of(dialect, placed(c))).collect();
    let told: Vec<Held> = claimed.iter().map(recognised).collect();
    assert_eq!(told, expected, "{dialect}");
}

#[test]
fn shares_come_back_on_the_same_cards() {
    for (dialect, share) in SHARES {
        let draft = pod().app("main", share).app("idle", &[]).app("more", share);
        check(dialect, &draft);
    }
}

#[test]
fn whole_cards_come_back_whole_and_in_order() {
    for (dialect, pair) in PAIRS {
        check(dialect, &pod().app("idle", &[]).app("one", pair).app("two", pair));
    }
}

#[test]
fn init_containers_come_back_where_the_dialect_can_name_them() {
    let by_name = [
        Dialect::Nano,
        Dialect::NanoIo,
        Dialect::Elastic,
        Dialect::ElasticCom,
        Dialect::VgpuManager,
    ];
    for (dialect, share) in SHARES.into_iter().filter(|(dialect, _)| by_name.contains(dialect)) {
        check(dialect, &pod().init("fetch", share).sidecar("watch", share).app("main", share));
    }
}

#[test]
fn elsewhere_the_work_of_the_pod_comes_back() {
    for (dialect, share) in SHARES {
        let draft = pod().init("fetch", share).app("main", share).app("more", share);
        let (placement, claimed) = told_by_the_dialect_alone(&draft);
        let apps = placement.containers().iter().filter(|container| container.role == App);
        let told = claimed.iter().filter(|claimed| claimed.role == App);
        let expected: Vec<Held> = apps.map(placed).collect();
        assert_eq!(told.map(recognised).collect::<Vec<_>>(), expected, "{dialect}");
    }
}
