//! When another system's annotations are believed.

use dialect::{Settings, observe};
use model::{Claim, Phase};
use serde_json::json;

use crate::common::{AFTER, BEFORE, Draft, NODE, TAKE_OVER, claim, percent, pod, taken_over};
use crate::observing::{minor, one};

fn draft() -> Draft {
    pod()
        .app("main", &[("nano-gpu/gpu-percent", "20")])
        .annotate_all(&[("nano-gpu/assume", "true"), ("nano-gpu/container-main", "1")])
}

#[test]
fn annotations_are_believed_on_pods_bound_before_the_take_over() {
    let held = one(&[(minor(1), percent(1, 20, 20).1)]);
    assert_eq!(claim(&draft().bound(BEFORE)), held);
    assert_eq!(claim(&draft().bound(TAKE_OVER)), held);
    assert_eq!(claim(&draft().bound(AFTER)), Claim::Nothing);
}

#[test]
fn without_a_take_over_nothing_foreign_is_believed() {
    let holder = observe(&draft().bound(BEFORE).build(), &Settings::all_dialects()).unwrap();
    assert_eq!(holder.claim, Claim::Nothing);
}

#[test]
fn a_pod_that_does_not_say_when_it_was_bound_is_not_believed() {
    let unknown = draft().bound(BEFORE).set("/status/conditions", json!([]));
    assert_eq!(claim(&unknown), Claim::Nothing);
    let refused =
        json!([{"type": "PodScheduled", "status": "False", "lastTransitionTime": BEFORE}]);
    assert_eq!(claim(&draft().bound(BEFORE).set("/status/conditions", refused)), Claim::Nothing);
}

#[test]
fn times_that_cannot_be_compared_are_not_believed() {
    for time in ["", "2026-06-01T11:59:59.5Z", "2026-06-01T11:59:59+08:00", "yesterday", "0"] {
        assert_eq!(claim(&draft().bound(time)), Claim::Nothing, "{time}");
        let settings = Settings { took_over_at: Some(time.into()), ..taken_over() };
        let holder = observe(&draft().bound(BEFORE).build(), &settings).unwrap();
        assert_eq!(holder.claim, Claim::Nothing, "{time}");
    }
}

#[test]
fn a_dialect_that_is_switched_off_is_not_believed() {
    let settings = Settings { enabled: [].into(), ..taken_over() };
    let holder = observe(&draft().bound(BEFORE).build(), &settings).unwrap();
    assert_eq!((holder.claim, holder.tickets), (Claim::Nothing, vec![]));
}

#[test]
fn annotations_without_a_request_say_nothing() {
    let draft = pod()
        .app("main", &[])
        .annotate_all(&[("nano-gpu/assume", "true"), ("nano-gpu/container-main", "1")]);
    assert_eq!(claim(&draft.bound(BEFORE)), Claim::Nothing);
}

#[test]
fn a_pod_without_the_mark_of_its_system_was_not_placed_by_it() {
    for (key, value) in [("nano-gpu/assume", "false"), ("nano-gpu/assume", ""), ("x", "true")] {
        let draft = pod()
            .app("main", &[("nano-gpu/gpu-percent", "20")])
            .annotate("nano-gpu/container-main", "1")
            .annotate(key, value);
        assert_eq!(claim(&draft.bound(BEFORE)), Claim::Nothing);
    }
}

#[test]
fn unbound_and_ended_pods_are_no_holders() {
    assert_eq!(observe(&draft().build(), &taken_over()), None);
    for phase in ["Succeeded", "Failed"] {
        let ended = draft().bound(BEFORE).set("/status/phase", json!(phase)).build();
        assert_eq!((ended.phase, observe(&ended, &taken_over())), (Phase::Ended, None));
    }
}

#[test]
fn a_pod_on_its_way_out_holds_until_it_is_gone() {
    let mut pod = draft().bound(BEFORE).build();
    pod.terminating = true;
    pod.priority = 3;
    let holder = observe(&pod, &taken_over()).unwrap();
    assert_eq!((holder.terminating, holder.priority), (true, 3));
    assert_eq!(holder.claim, one(&[(minor(1), percent(1, 20, 20).1)]));
    assert_eq!((holder.node.as_str(), holder.pod.name.as_str()), (NODE, "train"));
    // Pending on its node, it may start any moment.
    let pending = draft().bound(BEFORE).set("/status/phase", json!("Pending"));
    assert_eq!(claim(&pending), one(&[(minor(1), percent(1, 20, 20).1)]));
}
