//! Running pods whose request we would refuse today: they hold all the same.

use model::Claim;
use model::Part::Whole;
use model::Role::App;

use crate::common::{BEFORE, claim, part, percent, pod};
use crate::observing::{holds, main, minor, one};

#[test]
fn what_cannot_be_read_counts_as_whole_cards() {
    let draft = main(&[("elasticgpu.io/gpu-core", "150")])
        .annotate_all(&[("elasticgpu.io/assumed", "true"), ("elasticgpu.io/container-main", "2")]);
    assert_eq!(claim(&draft), one(&[(minor(2), Whole)]));
    let draft = main(&[("tencent.com/vcuda-core", "250"), ("tencent.com/vcuda-memory", "1")])
        .annotate("tencent.com/predicate-gpu-idx-0", "0,3");
    assert_eq!(claim(&draft), one(&[(minor(0), Whole), (minor(3), Whole)]));
}

#[test]
fn a_neighbour_in_the_same_pod_keeps_its_share() {
    let draft = pod()
        .app("main", &[("elasticgpu.io/gpu-core", "150")])
        .app("more", &[("elasticgpu.io/gpu-core", "20")])
        .annotate_all(&[
            ("elasticgpu.io/assumed", "true"),
            ("elasticgpu.io/container-main", "2"),
            ("elasticgpu.io/container-more", "1"),
        ])
        .bound(BEFORE);
    let expected =
        vec![holds(App, &[(minor(2), Whole)]), holds(App, &[(minor(1), percent(1, 20, 20).1)])];
    assert_eq!(claim(&draft), Claim::Shares(expected));
}

#[test]
fn annotations_we_would_refuse_do_not_make_a_share_a_whole_card() {
    let wishes = [
        ("nano-gpu/node-policy", "nonsense"),
        ("hami.io/gpu-scheduler-policy", "fastest"),
        ("tencent.com/vcuda-core-limit", "many"),
        ("tencent.com/vcuda-core-limit", "10"),
    ];
    for (key, value) in wishes {
        let draft = main(&[("tencent.com/vcuda-core", "50"), ("tencent.com/vcuda-memory", "30")])
            .annotate("tencent.com/predicate-gpu-idx-0", "1")
            .annotate(key, value);
        assert!(!draft.refusal().is_empty());
        assert_eq!(claim(&draft), one(&[(minor(1), part(50, 7680))]), "{key}");
    }
}

#[test]
fn half_a_request_was_no_request_to_the_originals() {
    // They gave `half` no card and hence no annotation; that is not a missing one.
    let draft = pod()
        .app("main", &[("tencent.com/vcuda-core", "50"), ("tencent.com/vcuda-memory", "30")])
        .app("half", &[("tencent.com/vcuda-memory", "30")])
        .annotate("tencent.com/predicate-gpu-idx-0", "1")
        .bound(BEFORE);
    assert!(draft.refusal().contains("half"));
    assert_eq!(claim(&draft), one(&[(minor(1), part(50, 7680))]));
}

#[test]
fn a_pod_of_two_dialects_holds_what_the_one_that_placed_it_gave() {
    let draft = main(&[("elasticgpu.io/gpu-core", "20"), ("elasticgpu.com/gpu-core", "20")])
        .annotate_all(&[("elasticgpu.io/assumed", "true"), ("elasticgpu.io/container-main", "1")]);
    assert!(draft.refusal().contains("both"));
    assert_eq!(claim(&draft), one(&[(minor(1), percent(1, 20, 20).1)]));
}
