//! Halves of requests, contradictions, and two dialects at once.

use crate::common::pod;

const NANO: (&str, &str) = ("nano-gpu/gpu-percent", "20");
const TENCENT: [(&str, &str); 2] =
    [("tencent.com/vcuda-core", "50"), ("tencent.com/vcuda-memory", "30")];

#[test]
fn limit_and_request_must_be_equal() {
    let resource = "nano-gpu/gpu-percent";
    for (limit, request) in [("20", "30"), ("20", "0"), ("20", "garbage"), ("0", "20")] {
        assert_eq!(
            pod().app_with("main", &[(resource, limit)], &[(resource, request)]).refusal(),
            format!(
                "container main: {resource} has limit {limit:?} but request {request:?}; \
                 they must be equal"
            )
        );
    }
}

#[test]
fn half_a_request_is_refused_with_what_is_missing() {
    let table = [
        ("nano-gpu/gpu-memory", "nano-gpu/gpu-percent"),
        ("tencent.com/vcuda-memory", "tencent.com/vcuda-core"),
        ("tencent.com/vcuda-core", "tencent.com/vcuda-memory"),
        ("inspur.com/vcuda-memory", "inspur.com/vcuda-core"),
        ("inspur.com/vcuda-core", "inspur.com/vcuda-memory"),
        ("nvidia.com/vcuda-memory", "nvidia.com/vcuda-core"),
        ("nvidia.com/vcuda-core", "nvidia.com/vcuda-memory"),
        ("nvidia.com/gpumem", "nvidia.com/gpu"),
        ("nvidia.com/gpumem-percentage", "nvidia.com/gpu"),
        ("nvidia.com/gpucores", "nvidia.com/gpu"),
        ("nvidia.com/vgpu-cores", "nvidia.com/vgpu-number"),
        ("nvidia.com/vgpu-memory", "nvidia.com/vgpu-number"),
    ];
    for (has, lacks) in table {
        let sentence =
            format!("container main asks for {has} but not for {lacks}; a share needs both");
        assert_eq!(pod().app("main", &[(has, "50")]).refusal(), sentence);
        // 0 is the same as leaving it out.
        assert_eq!(pod().app("main", &[(has, "50"), (lacks, "0")]).refusal(), sentence);
    }
}

#[test]
fn two_dialects_are_refused_in_one_container_and_in_two() {
    let sentence = "the pod asks for both nano-gpu/gpu-percent and tencent.com/vcuda-core; \
                    all containers of a pod must use the names of one system";
    let mixed = [NANO, TENCENT[0], TENCENT[1]];
    assert_eq!(pod().app("main", &mixed).refusal(), sentence);
    assert_eq!(pod().app("main", &TENCENT).app("side", &[NANO]).refusal(), sentence);
    assert_eq!(pod().init("fetch", &[NANO]).app("main", &TENCENT).refusal(), sentence);
}

#[test]
fn both_spellings_of_elastic_gpu_at_once_are_two_dialects() {
    let both = [("elasticgpu.com/gpu-core", "20"), ("elasticgpu.io/gpu-core", "20")];
    assert_eq!(
        pod().app("main", &both).refusal(),
        "the pod asks for both elasticgpu.io/gpu-core and elasticgpu.com/gpu-core; \
         all containers of a pod must use the names of one system"
    );
}

#[test]
fn zero_of_another_dialect_is_no_second_dialect() {
    let mixed = [NANO, ("tencent.com/vcuda-core", "0"), ("aliyun.com/gpu-mem", "0")];
    let asked = pod().app("main", &mixed).read();
    assert_eq!((asked.dialect, asked.request.containers.len()), (dialect::Dialect::Nano, 1));
}

#[test]
fn a_dialect_that_is_switched_off_is_no_second_dialect() {
    let mixed = [NANO, ("nvidia.com/gpu", "1")];
    assert!(pod().app("main", &mixed).refusal().contains("both"));
    let read = pod().app("main", &mixed).read_by(&dialect::Settings::default());
    assert_eq!(read.unwrap().unwrap().dialect, dialect::Dialect::Nano);
}
