//! The metrics of the original systems, under their own names, for dashboards that ask for them.
//!
//! Memory is in MiB, as theirs is. Each is summed over the cards of a container, and over the
//! containers of a pod, as theirs are.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::picture::Picture;
use crate::usage::Use;

const MIB: f64 = 1_048_576.0;

/// All of them, as text.
pub fn text(picture: &Picture, node: &str) -> String {
    let mut lines = Lines::default();
    gpu_manager(&mut lines, picture, node);
    exporter(&mut lines, picture, node);
    lines.text()
}

/// Lines by their metric, since all of one metric must stand together.
#[derive(Default)]
struct Lines(BTreeMap<&'static str, Vec<String>>);

impl Lines {
    fn add(&mut self, name: &'static str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let line = format!("{name}{{{}}} {value}", labels.join(","));
        self.0.entry(name).or_default().push(line);
    }

    /// The exporter's builds differ in how they call these, so both are there.
    fn percent(&mut self, names: [&'static str; 2], labels: &[(&str, &str)], value: f64) {
        for name in names {
            self.add(name, labels, value);
        }
    }

    fn text(self) -> String {
        let mut text = String::new();
        for (name, lines) in self.0 {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "# TYPE {name} gauge");
            for line in lines {
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[expect(clippy::cast_precision_loss, reason = "a card has less than 2^53 bytes")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole * 10_000.0).round() / 100.0 } else { 0.0 }
}

fn names(one: &Use) -> (&str, &str, &str) {
    let (namespace, pod) = one.pod_name.split_once('/').unwrap_or(("", &one.pod_name));
    (namespace, pod, one.container.as_deref().unwrap_or_default())
}

/// Those of gpu-manager.
fn gpu_manager(lines: &mut Lines, picture: &Picture, node: &str) {
    let mut totals: BTreeMap<(&str, &str, &str), [f64; 4]> = BTreeMap::new();
    for one in &picture.uses {
        let (namespace, pod, container) = names(one);
        let card = picture.index(&one.device).map_or_else(String::new, |n| format!("gpu{n}"));
        let labels = |what| {
            let own = [("pod_name", pod), ("namespace", namespace), ("node", node)];
            [own[0], own[1], own[2], ("container_name", container), what]
        };
        let (busy, used) = (f64::from(one.busy), mebibytes(one.used));
        lines.add("container_gpu_utilization", &labels(("gpu", &card)), busy);
        lines.add("container_gpu_memory_total", &labels(("gpu_memory", &card)), used);
        let sum = totals.entry((namespace, pod, container)).or_default();
        let more = [busy, used, f64::from(one.cores) / 100.0, mebibytes(one.limit)];
        for (sum, more) in sum.iter_mut().zip(more) {
            *sum += more;
        }
    }
    for ((namespace, pod, container), [busy, used, cores, memory]) in totals {
        let own = [("pod_name", pod), ("namespace", namespace), ("node", node)];
        let labels = |key| [own[0], own[1], own[2], ("container_name", container), (key, "total")];
        lines.add("container_gpu_utilization", &labels("gpu"), busy);
        lines.add("container_gpu_memory_total", &labels("gpu_memory"), used);
        lines.add("container_request_gpu_utilization", &labels("req_of_gpu"), cores);
        lines.add("container_request_gpu_memory", &labels("req_of_gpu_memory"), memory);
    }
}

/// Those of nano-gpu's exporter; its label `pod` of a pod's metrics is the UID.
fn exporter(lines: &mut Lines, picture: &Picture, node: &str) {
    let mut total = 0.0;
    for seen in &picture.measured {
        let card = picture.index(&seen.device).map_or_else(String::new, |n| n.to_string());
        let labels = [("node", node), ("card", card.as_str())];
        let busy = f64::from(seen.busy.unwrap_or(0));
        let (used, all) = (mebibytes(seen.used), mebibytes(seen.total));
        lines.add("gpu_core_usage", &labels, busy);
        lines.percent(["gpu_core_utilization", "gpu_core_utilization_percentage"], &labels, busy);
        lines.add("gpu_mem_usage", &labels, used);
        lines.percent(
            ["gpu_mem_utilization", "gpu_mem_utilization_percentage"],
            &labels,
            percent(used, all),
        );
        total += all;
    }
    let cards = f64::from(u32::try_from(picture.measured.len()).unwrap_or(u32::MAX));
    let mut pods: BTreeMap<(&str, &str), [f64; 4]> = BTreeMap::new();
    let mut containers: BTreeMap<(&str, &str, &str), [f64; 4]> = BTreeMap::new();
    for one in &picture.uses {
        let (namespace, pod, container) = names(one);
        let more = [f64::from(one.busy), mebibytes(one.used)];
        let more = [more[0], more[1], f64::from(one.cores), mebibytes(one.limit)];
        let of_pod = pods.entry((namespace, one.pod.as_str())).or_default();
        let of_container = containers.entry((namespace, pod, container)).or_default();
        for sum in [of_pod, of_container] {
            for (sum, more) in sum.iter_mut().zip(more) {
                *sum += more;
            }
        }
    }
    for ((namespace, uid), [busy, used, cores, memory]) in pods {
        let labels = [("node", node), ("namespace", namespace), ("pod", uid)];
        lines.add("pod_core_usage", &labels, busy);
        lines.percent(
            ["pod_core_utilization", "pod_core_utilization_percentage"],
            &labels,
            percent(busy, cores),
        );
        lines.percent(
            ["pod_core_occupy_node", "pod_core_occupy_node_percentage"],
            &labels,
            percent(busy, cards * 100.0),
        );
        lines.add("pod_mem_usage", &labels, used);
        lines.percent(
            ["pod_mem_utilization", "pod_mem_utilization_percentage"],
            &labels,
            percent(used, memory),
        );
        lines.percent(
            ["pod_mem_occupy_node", "pod_mem_occupy_node_percentage"],
            &labels,
            percent(used, total),
        );
        lines.add("pod_mem_request", &labels, memory);
    }
    for ((namespace, pod, container), [busy, used, cores, memory]) in containers {
        let labels =
            [("node", node), ("namespace", namespace), ("pod", pod), ("container", container)];
        lines.add("container_core_usage", &labels, busy);
        lines.percent(
            ["container_core_utilization", "container_core_utilization_percentage"],
            &labels,
            percent(busy, cores),
        );
        lines.add("container_mem_usage", &labels, used);
        lines.percent(
            ["container_mem_utilization", "container_mem_utilization_percentage"],
            &labels,
            percent(used, memory),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::picture;

    #[test]
    fn dashboards_of_the_original_systems_find_their_names() {
        let text = text(&picture(), "n1");
        for line in [
            r#"container_gpu_utilization{pod_name="a",namespace="team",node="n1",container_name="main",gpu="gpu1"} 12"#,
            r#"container_gpu_utilization{pod_name="a",namespace="team",node="n1",container_name="main",gpu="total"} 12"#,
            r#"container_request_gpu_utilization{pod_name="a",namespace="team",node="n1",container_name="main",req_of_gpu="total"} 0.3"#,
            r#"container_gpu_memory_total{pod_name="a",namespace="team",node="n1",container_name="main",gpu_memory="gpu1"} 1024"#,
            r#"container_request_gpu_memory{pod_name="a",namespace="team",node="n1",container_name="main",req_of_gpu_memory="total"} 4096"#,
            r#"gpu_mem_usage{node="n1",card="1"} 2048"#,
            r#"pod_core_usage{node="n1",namespace="team",pod="u-1"} 12"#,
            r#"pod_core_utilization_percentage{node="n1",namespace="team",pod="u-1"} 40"#,
            r#"pod_mem_request{node="n1",namespace="team",pod="u-1"} 4096"#,
            r#"container_mem_utilization_percentage{node="n1",namespace="team",pod="a",container="main"} 25"#,
        ] {
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn the_lines_of_a_metric_stand_together_after_its_type() {
        let text = text(&picture(), "n1");
        let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let mut once = types.clone();
        once.dedup();
        assert_eq!(types, once);
        assert_eq!(escaped("a\"b\\"), "a\\\"b\\\\");
    }
}
