//! gpushare's tables, to the byte.

use dialect::Settings;
use kubectl::gpushare::{details, nodes, summary, unit};
use kubectl::observed::Objects;
use serde_json::{Value, json};

use crate::kept::is;

fn node(name: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {
            "allocatable": {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"},
            "addresses": [{"type": "Hostname", "address": name},
                          {"type": "InternalIP", "address": address}],
        },
    })
}

/// As gpushare itself leaves pods: an index in an annotation.
fn pod(name: &str, namespace: &str, on: &str, memory: &str, index: Option<&str>) -> Value {
    let mut annotations = json!({});
    if let Some(index) = index {
        annotations = json!({
            "ALIYUN_COM_GPU_MEM_IDX": index, "ALIYUN_COM_GPU_MEM_POD": memory,
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        });
    }
    json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}/{name}"),
                     "annotations": annotations},
        "spec": {"nodeName": on, "containers": [
            {"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": memory}}}]},
        "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
}

fn objects() -> Objects {
    let nodes = [node("gpu-node-2", "10.0.0.12"), node("gpu-node-1", "10.0.0.11")];
    Objects {
        nodes: nodes.map(|node| serde_json::from_value(node).unwrap()).into(),
        pods: vec![
            pod("binpack-1-1", "default", "gpu-node-1", "6", Some("0")),
            pod("binpack-1-0", "default", "gpu-node-1", "3", Some("0")),
            pod("waiting-0", "ml", "gpu-node-1", "2", None),
            pod("binpack-2-0", "default", "gpu-node-2", "3", Some("1")),
            pod("whole-0", "default", "gpu-node-2", "15", Some("0")),
        ],
        leases: Vec::new(),
    }
}

#[test]
fn the_tables_are_those_of_gpushare() {
    let objects = objects();
    let settings = Settings {
        took_over_at: Some("9999-12-31T23:59:59Z".into()),
        gpushare_unit: unit(&objects),
        ..Settings::default()
    };
    let snapshot = objects.snapshot(&settings, jiff::Timestamp::UNIX_EPOCH);
    let nodes = nodes(&objects, &settings, &snapshot);
    is("gpushare", &summary(&nodes));
    is("gpushare-details", &details(&nodes));
}
