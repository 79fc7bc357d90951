//! Story: a live cluster is taken over from the systems before, and nothing is sold twice.

use dialect::Settings;
use model::Pod;
use model::arb::node_name;
use stories::samples::{cluster, sample};
use stories::{Cluster, Outcome};

/// Pods as their own systems left them: manifest of the resources, annotations, where it landed.
fn left_behind() -> Vec<Pod> {
    let running = |name: &str, node: &str, limits: &str, annotations: &str| {
        let text = format!(
            r#"{{"metadata": {{"name": "{name}", "uid": "{name}", "annotations": {{{annotations}}}}},
                "spec": {{"nodeName": "{node}", "containers": [
                    {{"name": "main", "resources": {{"limits": {{{limits}}}}}}}]}},
                "status": {{"phase": "Running", "conditions": [{{"type": "PodScheduled",
                    "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}}]}}}}"#
        );
        Pod::from_json(&text).expect("a pod")
    };
    vec![
        running(
            "nano",
            "t4-node",
            r#""nano-gpu/gpu-percent": "30""#,
            r#""nano-gpu/assume": "true", "nano-gpu/container-main": "3""#,
        ),
        running(
            "gpu-manager",
            "t4-node",
            r#""tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "60""#,
            r#""tencent.com/predicate-time": "1", "tencent.com/predicate-gpu-idx-0": "2,1""#,
        ),
        running(
            "gpushare",
            "t4-node",
            r#""aliyun.com/gpu-mem": "3""#,
            r#""ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "3",
               "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true""#,
        ),
        running(
            "hami",
            "a100-node",
            r#""nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000""#,
            r#""hami.io/vgpu-devices-allocated": "GPU-a1-1,NVIDIA,3000,0:;""#,
        ),
        running(
            "vgpu-manager",
            "a100-node",
            r#""nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "20""#,
            r#""nvidia.com/pre-allocated": "main[1_GPU-a1-1_20_2048]",
               "nvidia.com/real-allocated": "main[2_GPU-a1-2_20_2048]""#,
        ),
    ]
}

fn frees(cluster: &Cluster, node: &str) -> Vec<(u32, u64)> {
    let snapshot = cluster.ledger.snapshot();
    let node = snapshot.node(&node_name(node)).expect("a node");
    node.devices.iter().map(|s| (s.free_cores().0, s.free_memory().0)).collect()
}

#[test]
fn pods_of_every_system_are_counted_where_they_are() {
    let mut cluster = cluster();
    cluster.settings =
        Settings { took_over_at: Some("2026-02-01T00:00:00Z".into()), ..cluster.settings };
    for pod in left_behind() {
        cluster.see(&pod);
    }
    // Device nodes are numbered from the other end here: node 3 is card 0.
    let t4 = frees(&cluster, "t4-node");
    assert_eq!(t4, [(70, 16384 - 4915), (0, 0), (0, 0), (100, 16384 - 3072)]);
    let a100 = frees(&cluster, "a100-node");
    assert_eq!(a100, [(100, 40960), (100, 37960), (80, 38912), (100, 40960)]);
    // The next pod goes beside them, not over them.
    assert!(matches!(cluster.submit(&sample("vcuda-whole")), Outcome::Runs(running)
        if running.placement.node().as_str() == "a100-node"));
}

#[test]
fn after_the_take_over_nobody_s_word_is_taken() {
    let mut cluster = cluster();
    cluster.settings =
        Settings { took_over_at: Some("2025-12-31T23:59:59Z".into()), ..cluster.settings };
    for pod in left_behind() {
        cluster.see(&pod);
    }
    // A pod that claims a card by itself gets none, but the kubelet's tickets it drew count.
    assert_eq!(frees(&cluster, "t4-node"), [(100, 16384); 4]);
    let snapshot = cluster.ledger.snapshot();
    let node = snapshot.node(&node_name("t4-node")).unwrap();
    assert_eq!(node.tickets["nano-gpu/gpu-percent"].used, 30);
    assert_eq!(node.tickets["tencent.com/vcuda-core"].used, 200);
}
