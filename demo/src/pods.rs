//! The pods of the demo: samples of every dialect as their authors wrote them, and tenants of one card.
//!
//! What a sample asks for is never touched. Only its container is: there is no registry to fetch an
//! image from, so it runs one of the testbed's, and a program that uses its cards.

use serde_json::{Value, json};

use crate::nodes::SIM;

/// A sample pod, and whose users write such pods.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) written_for: &'static str,
    text: &'static str,
    /// How many cards it sees.
    cards: usize,
}

macro_rules! sample {
    ($file:literal, $written_for:literal, $cards:literal) => {
        sample!("../../tests/pods/", $file, $written_for, $cards)
    };
    ($folder:literal, $file:literal, $written_for:literal, $cards:literal) => {
        Sample {
            name: $file,
            written_for: $written_for,
            text: include_str!(concat!($folder, $file, ".json")),
            cards: $cards,
        }
    };
}

/// At least one for every dialect.
pub(crate) const SAMPLES: [Sample; 13] = [
    sample!("nano-percent", "nano-gpu", 1),
    sample!("nano-memory", "nano-gpu", 1),
    sample!("nano-two-cards", "nano-gpu", 2),
    sample!("init-and-app", "nano-gpu", 1),
    sample!("nano-io", "nano-gpu, first form", 1),
    // By compute: memory in MiB would be more tickets than a kubelet can count on these nodes.
    sample!("../pods/", "elastic-core", "elastic-gpu", 1),
    sample!("vcuda-share", "gpu-manager", 1),
    sample!("vcuda-whole", "gpu-manager", 2),
    sample!("inspur-share", "gpu-manager (inspur)", 1),
    sample!("gpu-admission", "gpu-admission", 1),
    sample!("gpushare-1", "gpushare", 1),
    sample!("hami", "HAMi", 2),
    sample!("vgpu-manager", "vgpu-manager", 1),
];

/// One that can never run, by its path in this repository.
pub(crate) const WRONG: &str = "tests/pods/wrong-150.json";

impl Sample {
    /// The pod as its author wrote it.
    pub(crate) fn written(&self) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(self.text)?)
    }

    /// The same with containers that can run here.
    pub(crate) fn pod(&self) -> anyhow::Result<Value> {
        let mut pod = self.written()?;
        let loads: Vec<String> = (0..self.cards)
            .map(|card| load(&format!("--device {card} --memory 64MiB --busy 5%")))
            .collect();
        let command = format!("{} & wait", loads.join(" & "));
        for (list, command) in [("initContainers", "true"), ("containers", command.as_str())] {
            for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
                dress(container, command);
            }
        }
        furnish(&mut pod);
        Ok(pod)
    }

    /// What its containers ask for, as written; the domain of names is said once.
    pub(crate) fn asks(&self) -> anyhow::Result<String> {
        let pod = self.written()?;
        let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let mut asks: Vec<String> = containers.iter().map(asks).collect();
        let count = asks.len();
        asks.dedup();
        Ok(match (count, asks.as_slice()) {
            (2.., [one]) => format!("{count} x {one}"),
            _ => asks.join("; "),
        })
    }
}

fn asks(container: &Value) -> String {
    let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
    let mut said = "";
    let mut parts = Vec::new();
    for (name, value) in &limits {
        let (domain, rest) = name.split_once('/').unwrap_or(("", name));
        let name = if domain == said { rest } else { name };
        said = domain;
        parts.push(format!("{name} {}", value.as_str().unwrap_or_default()));
    }
    parts.join(", ")
}

/// What a tenant says when its program has ended.
pub(crate) const ENDED: &str = "it ended with code";

/// A tenant of the card `uuid`: a share, and a program that takes what it can get.
pub(crate) fn tenant(name: &str, percent: u32, uuid: &str, wants: &str) -> Value {
    // One that was stopped stays, so that its words can be read.
    let command = format!("{}; echo \"{ENDED} $?\"; sleep 1000000", load(wants));
    let mut container = json!({
        "name": "main",
        "resources": {"limits": {"nano-gpu/gpu-percent": percent.to_string()}},
    });
    dress(&mut container, &command);
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"nano-gpu/use-gpuuuid": uuid}},
        "spec": {"containers": [container]},
    });
    furnish(&mut pod);
    pod
}

/// A pod that has to wait: it wants all T4 there are, whole.
pub(crate) fn greedy() -> Value {
    let mut container = json!({
        "name": "train", "resources": {"limits": {"nano-gpu/gpu-percent": "400"}},
    });
    dress(&mut container, "sleep 1000000");
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "four-t4", "annotations": {"nano-gpu/use-gputype": "T4"}},
        "spec": {"containers": [container]},
    });
    furnish(&mut pod);
    pod
}

fn load(words: &str) -> String {
    let program = "/opt/simgpu/nanogpu-simgpu --machine /run/nanogpu-simgpu";
    format!("{program} load --seconds 0 {words}")
}

fn dress(container: &mut Value, command: &str) {
    container["image"] = json!("localhost/nanogpu-debian:1");
    container["imagePullPolicy"] = json!("Never");
    container["command"] = json!(["sh", "-c", command]);
    container["volumeMounts"] = json!([
        {"name": "machine", "mountPath": "/run/nanogpu-simgpu"},
        {"name": "bin", "mountPath": "/opt/simgpu", "readOnly": true},
    ]);
}

/// Where a simulated card is a file, a container must see that file; with a real one these are not there.
fn furnish(pod: &mut Value) {
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod["spec"]["volumes"] = json!([
        {"name": "machine", "hostPath": {"path": format!("{SIM}/m")}},
        {"name": "bin", "hostPath": {"path": format!("{SIM}/bin")}},
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sample_asks_for_is_not_touched() {
        for sample in &SAMPLES {
            let (written, pod) = (sample.written().unwrap(), sample.pod().unwrap());
            assert_eq!(pod["metadata"], written["metadata"]);
            assert_eq!(pod["spec"]["schedulerName"], written["spec"]["schedulerName"]);
            let asked = |pod: &Value| {
                let containers = pod["spec"]["containers"].as_array().unwrap().clone();
                containers.iter().map(|it| it["resources"].clone()).collect::<Vec<_>>()
            };
            assert_eq!(asked(&pod), asked(&written), "{}", sample.name);
        }
    }

    #[test]
    fn asks_are_told_container_by_container() {
        let admission = SAMPLES.iter().find(|it| it.name == "gpu-admission").unwrap();
        let asks = admission.asks().unwrap();
        assert_eq!(asks, "2 x nvidia.com/vcuda-core 10, vcuda-memory 1024");
    }
}
