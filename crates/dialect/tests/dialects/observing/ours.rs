//! Our own placement, which outranks all others.

use dialect::{Settings, observe};
use model::Claim;
use model::Part::Whole;
use model::Role::{App, Init};

use crate::common::{AFTER, BEFORE, Draft, claim, part, pod};
use crate::observing::{holds, id, one, unreadable};

fn draft(placement: &str) -> Draft {
    pod()
        .app("main", &[("nano-gpu/gpu-percent", "20")])
        .annotate_all(&[("nano-gpu/assume", "true"), ("nano-gpu/container-main", "1")])
        .annotate("nano-gpu/placement", placement)
}

#[test]
fn our_placement_wins_over_a_foreign_one_at_any_time() {
    let text = "v1;gpu-1;main=GPU-7:20%+3276Mi";
    let held = one(&[(id("GPU-7"), part(20, 3276))]);
    for time in [BEFORE, AFTER] {
        assert_eq!(claim(&draft(text).bound(time)), held);
    }
    let holder = observe(&draft(text).bound(AFTER).build(), &Settings::default()).unwrap();
    assert_eq!(holder.claim, held);
}

#[test]
fn every_container_of_the_placement_is_claimed() {
    let text = "v1;gpu-1@5;init:fetch=GPU-1:whole;main=GPU-7:20%+3276Mi,GPU-8:0%+1Mi";
    let expected = vec![
        holds(Init, &[(id("GPU-1"), Whole)]),
        holds(App, &[(id("GPU-7"), part(20, 3276)), (id("GPU-8"), part(0, 1))]),
    ];
    assert_eq!(claim(&draft(text).bound(AFTER)), Claim::Shares(expected));
}

#[test]
fn a_placement_for_another_node_is_nothing_here() {
    // Not even the foreign annotations are asked: the agent here has refused the pod.
    let elsewhere = draft("v1;gpu-2;main=GPU-7:20%+3276Mi").bound(BEFORE);
    assert_eq!(claim(&elsewhere), Claim::Nothing);
}

#[test]
fn a_placement_that_cannot_be_read_is_said_with_its_cause() {
    let table = [
        (
            "v2;gpu-1;main=GPU-7:20%+3276Mi",
            "placement has version \"v2\"; this build reads v1: upgrade this component",
        ),
        ("v1;gpu-1;main=GPU-7:20%", "placement is cut off or malformed at \"GPU-7:20%\""),
        ("v1;gpu-1;main", "placement is cut off or malformed at \"main\""),
        ("", "placement is cut off or malformed at \"\""),
        ("v1;gpu-1", "placement contradicts itself: no container has a device"),
        (
            "v1;gpu-1;Main=GPU-7:whole",
            "placement holds a bad name: \"Main\" is not a container name: \
             a DNS label of at most 63 lower-case letters, digits and '-'",
        ),
    ];
    for (text, why) in table {
        assert_eq!(unreadable(&draft(text).bound(AFTER)), why);
    }
}

#[test]
fn a_placement_holds_even_where_its_dialect_is_switched_off() {
    let settings = Settings { enabled: [].into(), ..Settings::default() };
    let pod = draft("v1;gpu-1;main=GPU-7:whole").bound(AFTER).build();
    assert_eq!(observe(&pod, &settings).unwrap().claim, one(&[(id("GPU-7"), Whole)]));
}
