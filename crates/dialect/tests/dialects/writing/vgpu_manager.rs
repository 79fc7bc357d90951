//! vgpu-manager: one list by container name.

use model::Role::App;

use crate::common::{cards, env, map, place, pod, share};
use crate::writing::{four, four_placed, written};

const SHARE: [(&str, &str); 3] = [
    ("nvidia.com/vgpu-number", "1"),
    ("nvidia.com/vgpu-cores", "20"),
    ("nvidia.com/vgpu-memory", "2048"),
];
const TWO: [(&str, &str); 1] = [("nvidia.com/vgpu-number", "2")];

#[test]
fn the_list_names_every_container_with_index_and_uuid() {
    let written = written(&four(&SHARE, &TWO), &four_placed(20, 2048));
    let annotations = map(&[
        (
            "nano-gpu/placement",
            "v1;gpu-1;init:fetch=GPU-2:20%+2048Mi;main=GPU-1:20%+2048Mi;\
             pair=GPU-3:whole,GPU-0:whole",
        ),
        ("nvidia.com/predicate-node", "gpu-1"),
        ("nvidia.com/predicate-time", "1780000000123456789"),
        (
            "nvidia.com/pre-allocated",
            "fetch[2_GPU-2_20_2048];main[1_GPU-1_20_2048];idle[];\
             pair[3_GPU-3_100_16384,0_GPU-0_100_16384]",
        ),
    ]);
    let labels = map(&[("nvidia.com/assigned-phase", "allocating")]);
    assert_eq!((written.annotations, written.labels), (annotations, labels));
}

#[test]
fn containers_learn_who_they_are_and_their_limits() {
    let draft = four(&SHARE, &TWO);
    let placement = four_placed(20, 2048);
    let who = |container| {
        vec![
            ("VGPU_POD_NAME", "train"),
            ("VGPU_POD_NAMESPACE", "team"),
            ("VGPU_POD_UID", "u-1"),
            ("VGPU_CONTAINER_NAME", container),
        ]
    };
    let mut main = who("main");
    main.extend([
        ("CUDA_MEM_LIMIT_0", "2048m"),
        ("CUDA_CORE_LIMIT_0", "20"),
        ("MANAGER_VISIBLE_DEVICES", "GPU-1"),
    ]);
    assert_eq!(env(&draft, "main", &placement, &cards()), map(&main));
    let mut pair = who("pair");
    pair.push(("MANAGER_VISIBLE_DEVICES", "GPU-3,GPU-0"));
    assert_eq!(env(&draft, "pair", &placement, &cards()), map(&pair));
}

#[test]
fn no_core_limit_is_shown_where_compute_is_not_shared() {
    for cores in [0, 100] {
        let limits = [("nvidia.com/vgpu-number", "1"), ("nvidia.com/vgpu-memory", "2048")];
        let placement = place(&[("main", App, &[share(1, cores, 2048)])]);
        let env = env(&pod().app("main", &limits), "main", &placement, &cards());
        assert!(env.contains_key("CUDA_MEM_LIMIT_0") && !env.contains_key("CUDA_CORE_LIMIT_0"));
    }
}
