//! From a decision to a bound pod.

use std::sync::Arc;

use ledger::{Event, Ledger};
use model::arb::node_name;
use model::{Claim, Claimed, DeviceRef, Health, Moment, Part, Portion, Role};

use crate::build::{facts, frees, ledger, node, pod, simple, uid};

fn refused(ledger: &mut Ledger, holder: model::Holder) -> String {
    ledger.reserve(holder, Moment(1000)).expect_err("a refusal").to_string()
}

#[test]
fn release_undoes_reserve() {
    let mut ledger = ledger(vec![facts("a", 2)]);
    ledger.apply(Event::Pod(simple("p", "a", 0, 10, 10)));
    let before = ledger.snapshot();
    ledger.reserve(simple("q", "a", 0, 50, 500), Moment(1000)).unwrap();
    assert_eq!(frees(&ledger, "a"), [(40, 490), (100, 1000)]);
    ledger.release(&uid("uid-q")).unwrap();
    assert_eq!(ledger.snapshot(), before);
    assert_eq!(
        ledger.release(&uid("uid-q")).unwrap_err().to_string(),
        "pod uid-q has no reservation"
    );
}

#[test]
fn a_pod_that_is_seen_as_reserved_leaves_its_node_as_it_is() {
    let mut ledger = ledger(vec![facts("a", 2)]);
    let held = simple("p", "a", 0, 60, 600);
    ledger.reserve(held.clone(), Moment(1000)).unwrap();
    let (view, changes) = (ledger.node(&node_name("a")).cloned().unwrap(), ledger.changes());
    ledger.apply(Event::Pod(held.clone()));
    assert!(Arc::ptr_eq(&view, ledger.node(&node_name("a")).unwrap()));
    // Readers are told all the same: the reservation is over.
    assert!(ledger.changes() > changes && ledger.reservations().next().is_none());
    assert_eq!(ledger.bound(&uid("uid-p")), Some(&node_name("a")));
    let heard = Event::Heartbeat { node: node_name("a"), at: Moment(0) };
    let rebuilt = Ledger::rebuild([heard, Event::Node(facts("a", 2)), Event::Pod(held)]);
    assert_eq!(ledger.snapshot(), rebuilt.snapshot());
    // What is seen otherwise than it was reserved counts as it is seen.
    ledger.reserve(simple("q", "a", 1, 60, 600), Moment(1000)).unwrap();
    ledger.apply(Event::Pod(simple("q", "a", 1, 50, 500)));
    assert_eq!(frees(&ledger, "a"), [(40, 400), (50, 500)]);
    ledger.apply(Event::PodGone(uid("uid-p")));
    ledger.apply(Event::PodGone(uid("uid-q")));
    assert_eq!(frees(&ledger, "a"), [(100, 1000), (100, 1000)]);
}

#[test]
fn two_quick_pods_do_not_get_the_same_share() {
    // Defect 17 of gpu-admission: the second decision was made on old data.
    let mut ledger = ledger(vec![facts("a", 1)]);
    ledger.reserve(simple("p", "a", 0, 60, 600), Moment(1000)).unwrap();
    let error = refused(&mut ledger, simple("q", "a", 0, 60, 600));
    assert_eq!(error, "device GPU-a-0 of node a has been taken");
    let error = refused(&mut ledger, pod("r", "a", &[(Role::App, &[(0, Portion::Whole)])]));
    assert_eq!(error, "device GPU-a-0 of node a has been taken");
}

#[test]
fn a_reservation_without_a_binding_expires() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    ledger.reserve(simple("p", "a", 0, 60, 600), Moment(1000)).unwrap();
    assert!(ledger.expire(Moment(999)).is_empty());
    assert_eq!(ledger.expire(Moment(1000)), [uid("uid-p")]);
    assert_eq!(frees(&ledger, "a"), [(100, 1000)]);
}

#[test]
fn a_fenced_reservation_is_freed_by_no_clock() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    ledger.reserve(simple("p", "a", 0, 60, 600), Moment(1000)).unwrap();
    ledger.fence(&uid("uid-p")).unwrap();
    assert!(ledger.expire(Moment(u64::MAX)).is_empty());
    assert_eq!(frees(&ledger, "a"), [(40, 400)]);
    let error = refused(&mut ledger, simple("p", "a", 0, 60, 600));
    assert_eq!(error, "a binding of pod team-a/p is under way");
    ledger.apply(Event::PodGone(uid("uid-p")));
    assert_eq!(frees(&ledger, "a"), [(100, 1000)]);
}

#[test]
fn a_committed_pod_becomes_a_holder_when_it_is_seen() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    let holder = simple("p", "a", 0, 60, 600);
    ledger.reserve(holder.clone(), Moment(1000)).unwrap();
    ledger.fence(&uid("uid-p")).unwrap();
    ledger.commit(&uid("uid-p")).unwrap();
    assert!(ledger.expire(Moment(9_000)).is_empty());
    ledger.apply(Event::Pod(holder));
    assert_eq!(ledger.reservations().count(), 0);
    assert_eq!(frees(&ledger, "a"), [(40, 400)]);
    let error = refused(&mut ledger, simple("p", "a", 0, 1, 1));
    assert_eq!(error, "pod team-a/p is already bound to node a");
}

#[test]
fn a_binding_is_fenced_before_it_is_committed() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    let p = uid("uid-p");
    assert_eq!(ledger.fence(&p).unwrap_err().to_string(), "pod uid-p has no reservation");
    ledger.reserve(simple("p", "a", 0, 60, 600), Moment(1000)).unwrap();
    let error = ledger.commit(&p).unwrap_err().to_string();
    assert_eq!(error, "the reservation of pod uid-p was not fenced before its binding");
    ledger.fence(&p).unwrap();
    ledger.fence(&p).unwrap();
    ledger.commit(&p).unwrap();
    assert_eq!(ledger.fence(&p).unwrap_err().to_string(), "pod uid-p has been bound");
}

#[test]
fn a_pod_seen_elsewhere_frees_what_was_reserved() {
    let mut ledger = ledger(vec![facts("a", 1), facts("b", 1)]);
    ledger.reserve(simple("p", "a", 0, 60, 600), Moment(1000)).unwrap();
    ledger.fence(&uid("uid-p")).unwrap();
    ledger.apply(Event::Pod(simple("p", "b", 0, 60, 600)));
    assert_eq!(frees(&ledger, "a"), [(100, 1000)]);
    assert_eq!(frees(&ledger, "b"), [(40, 400)]);
}

#[test]
fn a_new_decision_replaces_the_old() {
    let mut ledger = ledger(vec![facts("a", 2)]);
    ledger.reserve(simple("p", "a", 0, 60, 600), Moment(1000)).unwrap();
    ledger.reserve(simple("p", "a", 1, 70, 700), Moment(1000)).unwrap();
    assert_eq!(frees(&ledger, "a"), [(100, 1000), (30, 300)]);
}

#[test]
fn what_is_closed_gone_or_sick_is_not_reserved() {
    let mut sick = facts("sick", 1);
    let Some(Ok(inventory)) = &mut sick.inventory else { unreachable!() };
    Arc::make_mut(&mut inventory.devices[0]).health = Health::Cordoned;
    let mut ledger = ledger(vec![facts("a", 1), sick]);
    ledger.apply(Event::Node(facts("silent", 1)));
    let table = [
        (simple("p", "b", 0, 1, 1), "node b is gone"),
        (simple("p", "silent", 0, 1, 1), "node silent takes nothing new"),
        (simple("p", "sick", 0, 1, 1), "device GPU-sick-0 of node sick is gone or out of service"),
        (simple("p", "a", 7, 1, 1), "device GPU-a-7 of node a is gone or out of service"),
    ];
    for (holder, expected) in table {
        assert_eq!(refused(&mut ledger, holder), expected);
    }
    let mut vague = simple("p", "a", 0, 1, 1);
    let parts = vec![(DeviceRef::Minor(0), Part::Whole)];
    vague.claim = Claim::Shares(vec![Claimed { role: Role::App, parts }]);
    assert_eq!(refused(&mut ledger, vague), "the claim of pod team-a/p does not name devices");
    assert_eq!(ledger.reservations().count(), 0);
}

#[test]
fn tickets_are_reserved_too() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    let with = |name, tickets| {
        let mut holder = simple(name, "a", 0, 1, 1);
        holder.tickets = vec![("nano-gpu/gpu-percent".into(), tickets)];
        holder
    };
    ledger.reserve(with("p", 80), Moment(1000)).unwrap();
    let error = refused(&mut ledger, with("q", 21));
    assert_eq!(error, "node a has too few nano-gpu/gpu-percent left");
    assert_eq!(node(&ledger, "a").tickets["nano-gpu/gpu-percent"].used, 80);
}
