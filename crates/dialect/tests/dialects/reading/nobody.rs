//! Pods that are none of our business, and what of a pod is read besides cards.

use dialect::Settings;
use model::{Bytes, Host, MilliCpu};

use crate::common::pod;

#[test]
fn a_pod_without_our_resources_is_left_alone() {
    let drafts = [
        pod(),
        pod().app("main", &[]),
        pod().app("main", &[("cpu", "4"), ("memory", "8Gi"), ("amd.com/gpu", "1")]),
        // Selectors and policies say nothing without a request, not even nonsense.
        pod().app("main", &[]).annotate("nano-gpu/node-policy", "nonsense"),
        pod().app("main", &[]).annotate("nvidia.com/use-gputype", "A100"),
    ];
    for draft in drafts {
        assert_eq!(draft.read_by(&Settings::all_dialects()), Ok(None), "{:?}", draft.build());
    }
}

#[test]
fn a_dialect_that_is_switched_off_is_left_alone() {
    let settings = Settings { enabled: [].into(), ..Settings::default() };
    let draft = pod().app("main", &[("nano-gpu/gpu-percent", "nonsense")]);
    assert_eq!(draft.read_by(&settings), Ok(None));
}

#[test]
fn a_pod_that_asks_for_zero_asks_for_nothing() {
    for resource in ["nano-gpu/gpu-percent", "tencent.com/vcuda-core", "aliyun.com/gpu-mem"] {
        for zero in ["0", "0.0", "-0", "0Gi", "0e5"] {
            let draft = pod().app("main", &[(resource, zero)]);
            assert_eq!(draft.read_by(&Settings::default()), Ok(None), "{resource} {zero}");
        }
    }
}

#[test]
fn host_resources_and_priority_come_along() {
    let limits = [("nano-gpu/gpu-percent", "20"), ("cpu", "1500m"), ("memory", "1Gi")];
    let draft = pod().app("main", &limits).app("log", &[("cpu", "500m")]);
    let mut pod = draft.build();
    pod.priority = 7;
    let request = dialect::read(&pod, &Settings::default()).unwrap().unwrap().request;
    assert_eq!(request.host, Host { cpu: MilliCpu(2000), memory: Bytes(1 << 30) });
    assert_eq!((request.priority, request.pod.to_string()), (7, "team/train".to_owned()));
}
