//! Numbers outside what a dialect knows.

use crate::common::pod;

#[test]
fn between_whole_cards_there_is_nothing() {
    let cores = [
        ("nano-gpu/gpu-percent", ""),
        ("nano-gpu.io/gpu-core", ""),
        ("elasticgpu.io/gpu-core", ""),
        ("elasticgpu.com/gpu-core", ""),
        ("tencent.com/vcuda-core", "tencent.com/vcuda-memory"),
        ("inspur.com/vcuda-core", "inspur.com/vcuda-memory"),
        ("nvidia.com/vcuda-core", "nvidia.com/vcuda-memory"),
    ];
    for (resource, memory) in cores {
        for value in ["101", "150", "250", "1000000000000000001"] {
            let both = [(resource, value), (memory, "1")];
            let limits = if memory.is_empty() { &both[..1] } else { &both[..] };
            assert_eq!(
                pod().app("main", limits).refusal(),
                format!(
                    "container main: {resource} is {value}; it must be 1 to 99 for a part of a \
                     card, or a multiple of 100 for whole cards"
                )
            );
        }
    }
}

#[test]
fn vgpu_manager_has_at_most_16_cards_and_100_cores_of_each() {
    let number = |number| ("nvidia.com/vgpu-number", number);
    let table = [
        (vec![number("17")], "nvidia.com/vgpu-number is 17; it must be 1 to 16"),
        (
            vec![number("1"), ("nvidia.com/vgpu-cores", "101")],
            "nvidia.com/vgpu-cores is 101; it must be 1 to 100",
        ),
        (
            vec![number("1000000000000000000")],
            "nvidia.com/vgpu-number is 1000000000000000000; it must be 1 to 16",
        ),
    ];
    for (limits, sentence) in table {
        assert_eq!(pod().app("main", &limits).refusal(), format!("container main: {sentence}"));
    }
}

#[test]
fn hami_s_percentages_end_at_100() {
    for resource in ["nvidia.com/gpumem-percentage", "nvidia.com/gpucores"] {
        for value in ["101", "4294967297"] {
            assert_eq!(
                pod().app("main", &[("nvidia.com/gpu", "1"), (resource, value)]).refusal(),
                format!("container main: {resource} is {value}; it must be 1 to 100")
            );
        }
    }
}

#[test]
fn the_container_at_fault_is_named() {
    let good = [("nano-gpu/gpu-percent", "20")];
    let bad = [("nano-gpu/gpu-percent", "150")];
    let sentence = pod().app("main", &good).app("worker", &bad).init("fetch", &good).refusal();
    assert!(sentence.starts_with("container worker: "), "{sentence}");
    let sentence = pod().app("main", &good).app("worker", &good).init("fetch", &bad).refusal();
    assert!(sentence.starts_with("container fetch: "), "{sentence}");
}
