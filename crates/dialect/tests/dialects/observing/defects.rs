//! Defects of the systems of before that could come back here, by their number in the reference.

use dialect::Settings;
use model::Claim;
use model::Role::App;

use crate::common::{BEFORE, claim, part, percent, pod, write};
use crate::common::{cards, place, share};
use crate::observing::{holds, main, minor, one, unreadable};

#[test]
fn defect_08_a_missing_annotation_is_not_card_zero() {
    let draft = main(&[("nano-gpu/gpu-percent", "20")]).annotate("nano-gpu/assume", "true");
    assert_eq!(unreadable(&draft), "annotation nano-gpu/container-main is missing");
}

#[test]
fn defect_08_a_finished_pod_is_not_counted_again() {
    let draft = main(&[("nano-gpu/gpu-percent", "20")])
        .annotate_all(&[("nano-gpu/assume", "true"), ("nano-gpu/container-main", "0")])
        .set("/status/phase", serde_json::json!("Succeeded"));
    assert_eq!(dialect::observe(&draft.build(), &crate::common::taken_over()), None);
}

#[test]
fn defect_08_no_card_is_not_an_index() {
    let draft = main(&[("nano-gpu/gpu-percent", "20")])
        .annotate_all(&[("nano-gpu/assume", "true"), ("nano-gpu/container-main", "-1")]);
    assert_eq!(claim(&draft), Claim::Shares(vec![]));
}

#[test]
fn defect_11_a_container_without_a_request_holds_nothing_whatever_its_annotation_says() {
    let draft = pod()
        .app("main", &[("elasticgpu.io/gpu-core", "20")])
        .app("idle", &[])
        .annotate_all(&[
            ("elasticgpu.io/assumed", "true"),
            ("elasticgpu.io/container-main", "1"),
            // elastic-gpu gave every container an index.
            ("elasticgpu.io/container-idle", "1"),
        ])
        .bound(BEFORE);
    assert_eq!(claim(&draft), one(&[(minor(1), percent(1, 20, 20).1)]));
}

#[test]
fn defect_13_either_spelling_of_the_resource_is_recognised_under_the_same_keys() {
    for domain in ["elasticgpu.io", "elasticgpu.com"] {
        let draft = main(&[(&format!("{domain}/gpu-core"), "20")]).annotate_all(&[
            ("elasticgpu.io/assumed", "true"),
            ("elasticgpu.io/container-main", "1"),
        ]);
        assert_eq!(claim(&draft), one(&[(minor(1), percent(1, 20, 20).1)]), "{domain}");
    }
}

#[test]
fn defect_15_a_pod_that_had_been_predicated_is_read_and_written_anew() {
    for domain in ["tencent.com", "inspur.com", "nvidia.com"] {
        let name = |name: &str| format!("{domain}/{name}");
        let (core, memory) = (name("vcuda-core"), name("vcuda-memory"));
        let fresh = pod().app("main", &[(&core, "20"), (&memory, "8")]);
        let stale = fresh.clone().annotate_all(&[
            (&name("predicate-time"), "1"),
            (&name("predicate-node"), "gone"),
            (&name("predicate-gpu-idx-0"), "0"),
            (&name("gpu-assigned"), "false"),
        ]);
        assert_eq!(stale.read(), fresh.read());
        let placement = place(&[("main", App, &[share(1, 20, 2048)])]);
        let written =
            |draft| write(draft, &placement, &cards(), &Settings::all_dialects()).unwrap();
        // Every stale key is overwritten.
        assert_eq!(written(&stale), written(&fresh));
        let keys = written(&stale).annotations;
        assert!(stale.build().annotations.keys().all(|key| keys.contains_key(key)));
    }
}

#[test]
fn defect_15_a_predicate_that_was_never_bound_holds_nothing() {
    let draft = pod().app("main", &[("tencent.com/vcuda-core", "100")]).annotate_all(&[
        ("tencent.com/predicate-node", "gpu-1"),
        ("tencent.com/predicate-gpu-idx-0", "0"),
    ]);
    assert_eq!(dialect::observe(&draft.build(), &crate::common::taken_over()), None);
}

#[test]
fn defect_18_containers_of_one_pod_are_all_counted() {
    // gpu-admission's fork counted the shares of a pod as nothing.
    let share = [("nvidia.com/vcuda-core", "20"), ("nvidia.com/vcuda-memory", "1024")];
    let draft = pod()
        .app("a", &share)
        .app("b", &share)
        .annotate_all(&[
            ("nvidia.com/predicate-gpu-idx-0", "0"),
            ("nvidia.com/predicate-gpu-idx-1", " 0 "),
        ])
        .bound(BEFORE);
    let held = holds(App, &[(crate::observing::index(0), part(20, 1024))]);
    assert_eq!(claim(&draft), Claim::Shares(vec![held.clone(), held]));
}
