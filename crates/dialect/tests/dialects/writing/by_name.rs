//! nano-gpu, its first form, and elastic-gpu: a key for each container's name.

use model::Role::App;

use crate::common::{Amounts, cards, env, map, place, pod, share};
use crate::writing::{four, four_placed, written};

const PERCENT: Amounts = &[("nano-gpu/gpu-percent", "20")];
const PLACEMENT: &str = "v1;gpu-1;init:fetch=GPU-2:20%+3276Mi;main=GPU-1:20%+3276Mi;\
                         pair=GPU-3:whole,GPU-0:whole";

#[test]
fn device_nodes_are_written_under_each_container_s_name() {
    let table: [(&str, &str, &str, &str); 4] = [
        // resource, without its 20 or 200; annotation and label; key of a container
        ("nano", "nano-gpu/gpu-percent", "nano-gpu/assume", "nano-gpu/container-"),
        ("nano.io", "nano-gpu.io/gpu-core", "nano-gpu.io/gpu", "nano-gpu.io/gpu-"),
        ("elastic", "elasticgpu.io/gpu-core", "elasticgpu.io/assumed", "elasticgpu.io/container-"),
        // The agent of the other spelling writes the same keys.
        (
            "elastic.com",
            "elasticgpu.com/gpu-core",
            "elasticgpu.io/assumed",
            "elasticgpu.io/container-",
        ),
    ];
    for (name, resource, assumed, container) in table {
        let draft = four(&[(resource, "20")], &[(resource, "200")]);
        let written = written(&draft, &four_placed(20, 3276));
        let key = |name: &str| format!("{container}{name}");
        let annotations = map(&[
            ("nano-gpu/placement", PLACEMENT),
            (assumed, "true"),
            (&key("fetch"), "5"),
            (&key("main"), "6"),
            (&key("idle"), "-1"),
            (&key("pair"), "4,7"),
        ]);
        assert_eq!(written.annotations, annotations, "{name}");
        assert_eq!(written.labels, map(&[(assumed, "true")]), "{name}");
    }
}

#[test]
fn an_init_container_without_a_card_gets_no_key() {
    // The originals ignored init containers, so nobody looks for one.
    let draft = pod().init("fetch", &[]).sidecar("log", &[]).app("main", PERCENT);
    let placement = place(&[("main", App, &[share(1, 20, 3276)])]);
    let annotations = written(&draft, &placement).annotations;
    let keys: Vec<&String> = annotations.keys().collect();
    assert_eq!(keys, ["nano-gpu/assume", "nano-gpu/container-main", "nano-gpu/placement"]);
}

#[test]
fn containers_of_nano_gpu_learn_their_id_set_and_their_count() {
    let draft = four(&[("nano-gpu/gpu-percent", "20")], &[("nano-gpu/gpu-percent", "200")]);
    let placement = four_placed(20, 3276);
    let of = |name| env(&draft, name, &placement, &cards());
    assert_eq!(of("main"), map(&[("GPU", "1a2b3c4d"), ("ku", "20")]));
    assert_eq!(of("fetch"), map(&[("GPU", "1a2b3c4d"), ("ku", "20")]));
    assert_eq!(of("pair"), map(&[("GPU", "1a2b3c4d"), ("ku", "200")]));
}

#[test]
fn containers_of_elastic_gpu_learn_their_id_set() {
    for resource in ["nano-gpu.io/gpu-core", "elasticgpu.io/gpu-core", "elasticgpu.com/gpu-core"] {
        let draft = four(&[(resource, "20")], &[(resource, "200")]);
        let env = env(&draft, "main", &four_placed(20, 3276), &cards());
        assert_eq!(env, map(&[("GPU", "1a2b3c4d")]), "{resource}");
    }
}
