//! The pods of the stories.

use serde_json::{Value, json};
use testbed::BASE;

use crate::bed::{LOOKED, SIM};

/// A container that prints its device nodes, their numbers, its environment and mounts.
pub(crate) fn container(name: &str, limits: &Value, then: &str) -> Value {
    let look =
        format!("stat -c '%n %t:%T' /dev/nvidia*; env; cat /proc/self/mountinfo; echo '{LOOKED}'");
    json!({
        "name": name,
        "image": BASE,
        "command": ["sh", "-c", format!("{look}; {then}")],
        "resources": {"limits": limits},
    })
}

/// A pod that no scheduler takes.
pub(crate) fn pod(name: &str, init: &[Value], containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "nobody",
            "terminationGracePeriodSeconds": 0,
            "initContainers": init,
            "containers": containers,
        },
    })
}

/// A pod of one container that stays.
pub(crate) fn simple(name: &str, percent: u32) -> Value {
    pod(name, &[], &[container("main", &json!({"nano-gpu/gpu-percent": percent}), "sleep 100000")])
}

/// A container of a Debian-, Ubuntu- or RHEL-shaped image that looks around, and then uses cards as
/// programs do: through the `libcuda.so.1` that its loader finds.
pub(crate) fn user(shape: &str, limits: &Value, loads: &[&str]) -> Value {
    let program = "/opt/simgpu/nanogpu-simgpu --machine /run/nanogpu-simgpu load --seconds 0";
    let loads: Vec<String> = loads.iter().map(|load| format!("{program} {load} &")).collect();
    let mut user = container("main", limits, &format!("{} wait", loads.join(" ")));
    user["image"] = json!(format!("localhost/nanogpu-{shape}:1"));
    user["imagePullPolicy"] = json!("Never");
    user["volumeMounts"] = json!([
        {"name": "machine", "mountPath": "/run/nanogpu-simgpu"},
        {"name": "bin", "mountPath": "/opt/simgpu", "readOnly": true},
    ]);
    user
}

/// A pod with such a container.
pub(crate) fn using(name: &str, user: &Value) -> Value {
    let mut pod = pod(name, &[], std::slice::from_ref(user));
    pod["spec"]["volumes"] = json!([
        {"name": "machine", "hostPath": {"path": format!("{SIM}/m")}},
        {"name": "bin", "hostPath": {"path": format!("{SIM}/bin")}},
    ]);
    pod
}
