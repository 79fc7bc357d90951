//! What Kubernetes does not accept is left out and said; our own placement never is.

use dialect::{Dialect, Settings, WriteError, Written};
use model::Role::App;

use crate::common::{Draft, cards, map, place, place_asked, pod, share, write};
use crate::examples::{PAIRS, SHARES, share_of};
use crate::kubernetes::accepts;

const PERCENT: &str = "nano-gpu/gpu-percent";

fn try_write(draft: &Draft) -> Result<Written, WriteError> {
    let placement = place_asked(&draft.read(), &cards());
    write(draft, &placement, &cards(), &Settings::all_dialects())
}

#[test]
fn every_key_and_label_is_one_that_kubernetes_accepts() {
    let names = ["a", "0", "a-b", "x1--y", &"n".repeat(53), &"n".repeat(54), &"n".repeat(63)];
    for (dialect, limits) in SHARES.into_iter().chain(PAIRS) {
        for name in names {
            let written = try_write(&pod().init("i", limits).app(name, limits)).unwrap();
            accepts(&written);
            assert!(written.annotations.len() > 2, "{dialect} wrote {written:?}");
        }
    }
}

#[test]
fn a_long_container_name_costs_its_key_and_nothing_else() {
    let long = "n".repeat(63);
    let draft = pod().app("main", &[(PERCENT, "20")]).app(&long, &[(PERCENT, "30")]);
    let written = try_write(&draft).unwrap();
    let placement = format!("v1;gpu-1;main=GPU-0:20%+3276Mi;{long}=GPU-1:30%+4915Mi");
    let annotations = map(&[
        ("nano-gpu/placement", &placement),
        ("nano-gpu/assume", "true"),
        ("nano-gpu/container-main", "7"),
    ]);
    assert_eq!(written.annotations, annotations);
    assert_eq!(written.labels, map(&[("nano-gpu/assume", "true")]));
    let said: Vec<String> = written.omitted.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [format!(
            "nano-gpu/container-{long} is left out: \
             a key's name has at most 63 letters, digits, '-', '_' and '.'"
        )]
    );
}

#[test]
fn the_longest_name_that_keeps_its_key() {
    // 63 for all: "container-" and 53, "gpu-" and 59.
    for (resource, longest) in
        [(PERCENT, 53), ("elasticgpu.io/gpu-core", 53), ("nano-gpu.io/gpu-core", 59)]
    {
        let omitted = |length: usize| {
            let draft = pod().app(&"n".repeat(length), &[(resource, "20")]);
            try_write(&draft).unwrap().omitted.len()
        };
        assert_eq!((omitted(longest), omitted(longest + 1)), (0, 1), "{resource}");
    }
}

#[test]
fn only_dialects_that_write_names_into_keys_mind_long_ones() {
    let long = "n".repeat(63);
    for (dialect, limits) in SHARES {
        let written = try_write(&pod().app(&long, limits)).unwrap();
        let by_name = ["nano-gpu", "nano-gpu.io", "elasticgpu.io", "elasticgpu.com"];
        let omits = usize::from(by_name.contains(&dialect.as_str()));
        assert_eq!(written.omitted.len(), omits, "{dialect}");
    }
}

#[test]
fn keys_beyond_64_kib_are_dropped_together_and_the_placement_stays() {
    let crowd = |draft: Draft| {
        (0..1000).fold(draft, |draft, n| draft.app(&format!("{n:04}-{}", "n".repeat(45)), &[]))
    };
    let draft = crowd(pod().app("main", &[(PERCENT, "20")]));
    let written = try_write(&draft).unwrap();
    let placement = "v1;gpu-1;main=GPU-0:20%+3276Mi";
    assert_eq!(written.annotations, map(&[("nano-gpu/placement", placement)]));
    // A label without its annotations would send the dialect's tools looking for them.
    assert_eq!(written.labels, map(&[]));
    // One for each of 1001 containers, and `assume`.
    assert_eq!(written.omitted.len(), 1002);
    assert_eq!(
        written.omitted[0].to_string(),
        "nano-gpu/assume is left out: the pod's annotations would be too long"
    );
    // Dialects without such keys have room.
    let draft = crowd(pod().app("main", share_of(Dialect::Tencent)));
    assert_eq!(try_write(&draft).unwrap().omitted, []);
}

#[test]
fn a_pod_s_own_annotations_count_against_the_api_server_s_limit() {
    // The placement is 48 bytes with its key, and nano-gpu's own two keys 43.
    let draft = |own: usize| {
        let value = "x".repeat(own - "own".len());
        pod().app("main", &[(PERCENT, "20")]).annotate("own", &value)
    };
    let all = 256 * 1024;
    assert_eq!(try_write(&draft(all - 91)).unwrap().omitted, []);
    let written = try_write(&draft(all - 90)).unwrap();
    assert_eq!((written.annotations.len(), written.omitted.len()), (1, 2));
    assert!(try_write(&draft(all - 48)).is_ok());
    let error = try_write(&draft(all - 47)).unwrap_err();
    assert_eq!(error, WriteError::NoRoom { needed: 48, room: 47 });
    assert_eq!(
        error.to_string(),
        "the placement takes 48 bytes of annotations, but the pod has room for 47"
    );
    assert_eq!(try_write(&draft(2 * all)), Err(WriteError::NoRoom { needed: 48, room: 0 }));
}

#[test]
fn a_placement_beyond_64_kib_is_refused() {
    let crowd = (0..4000).fold(pod(), |draft, n| draft.app(&format!("c-{n}"), &[(PERCENT, "1")]));
    let refused = matches!(try_write(&crowd), Err(WriteError::NoRoom { needed, room: 65_536 }) if needed > 65_536);
    assert!(refused);
}

#[test]
fn a_placement_of_an_earlier_try_takes_no_room() {
    let old = "x".repeat(256 * 1024 - "nano-gpu/placement".len());
    let draft = pod().app("main", &[(PERCENT, "20")]).annotate("nano-gpu/placement", &old);
    assert_eq!(try_write(&draft).unwrap().omitted, []);
}

#[test]
fn a_card_that_is_not_known_is_not_passed_off_as_none() {
    let draft = pod().app("main", &[(PERCENT, "20")]);
    let placement = place(&[("main", App, &[share(9, 20, 3276)])]);
    let written = write(&draft, &placement, &cards(), &Settings::default()).unwrap();
    let placement = "v1;gpu-1;main=GPU-9:20%+3276Mi";
    assert_eq!(written.annotations, map(&[("nano-gpu/placement", placement)]));
    assert_eq!(written.labels, map(&[]));
    let said: Vec<String> = written.omitted.iter().map(ToString::to_string).collect();
    let why = "is left out: a card of the pod is not in the node's inventory";
    assert_eq!(said, ["nano-gpu/assume", "nano-gpu/container-main"].map(|k| format!("{k} {why}")));
}
