//! What is measured, for Prometheus. Labels of cards are those of NVIDIA's exporter, so that the two
//! can be joined.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::{DeviceId, Health};
use telemetry::Numbers;
use telemetry::metrics::encoding::EncodeLabelSet;
use telemetry::metrics::metrics::counter::Counter;
use telemetry::metrics::metrics::family::Family;
use telemetry::metrics::metrics::gauge::Gauge;
use telemetry::metrics::metrics::histogram::Histogram;

use crate::originals;
use crate::picture::Picture;
use crate::probing::{Cdi, Way};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(non_snake_case, reason = "labels as NVIDIA's exporter spells them")]
struct Card {
    gpu: String,
    UUID: String,
    modelName: String,
    Hostname: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(non_snake_case, reason = "labels as NVIDIA's exporter spells them")]
struct Tenant {
    gpu: String,
    UUID: String,
    Hostname: String,
    namespace: String,
    pod: String,
    container: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Plugin {
    resource: String,
}

/// Whether the original systems' metrics are told beside ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Originals {
    /// They are.
    Too,
    /// Only ours are.
    No,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    resource: String,
    outcome: String,
}

type Bytes = Gauge<u64, AtomicU64>;

/// All metrics of an agent.
#[derive(Debug)]
pub struct Metrics {
    numbers: Numbers,
    node: String,
    starts: Family<Outcome, Counter>,
    start_seconds: Histogram,
    allocate_seconds: Histogram,
    card_used: Family<Card, Bytes>,
    card_total: Family<Card, Bytes>,
    card_busy: Family<Card, Bytes>,
    card_healthy: Family<Card, Bytes>,
    card_strange: Family<Card, Bytes>,
    used: Family<Tenant, Bytes>,
    limit: Family<Tenant, Bytes>,
    busy: Family<Tenant, Bytes>,
    throttled: Family<Tenant, Counter<f64, AtomicU64>>,
    denied: Family<Tenant, Counter>,
    unbelievable: Family<Tenant, Bytes>,
    plugins: Family<Plugin, Bytes>,
    registrations: Family<Plugin, Counter>,
    collected: Counter,
    answering: Bytes,
    seeing: Bytes,
    cdi: Gauge,
    by_folders: Gauge,
    originals: bool,
    latest: Mutex<Arc<Picture>>,
    // Held while families are filled, told and emptied, so that two scrapes do not mix.
    scrape: Mutex<()>,
}

impl Metrics {
    /// Metrics of the agent on `node`; with those of the original systems where `originals` is.
    pub fn new(node: &str, originals: Originals) -> Self {
        let metrics = Self {
            numbers: Numbers::new(),
            node: node.to_owned(),
            starts: Family::default(),
            start_seconds: telemetry::durations(),
            allocate_seconds: telemetry::durations(),
            card_used: Family::default(),
            card_total: Family::default(),
            card_busy: Family::default(),
            card_healthy: Family::default(),
            card_strange: Family::default(),
            used: Family::default(),
            limit: Family::default(),
            busy: Family::default(),
            throttled: Family::default(),
            denied: Family::default(),
            unbelievable: Family::default(),
            plugins: Family::default(),
            registrations: Family::default(),
            collected: Counter::default(),
            answering: Bytes::default(),
            seeing: Bytes::default(),
            cdi: Gauge::default(),
            by_folders: Gauge::default(),
            originals: originals == Originals::Too,
            latest: Mutex::default(),
            scrape: Mutex::default(),
        };
        metrics.cdi.set(-1);
        metrics.numbers.register(|r| {
            r.register(
                "agent_cdi",
                "1 if the container runtime resolves CDI devices, 0 if it does not, -1 if that is not known",
                metrics.cdi.clone(),
            );
            r.register(
                "agent_by_folders",
                "1 if devices come into containers by folders and not by CDI",
                metrics.by_folders.clone(),
            );
            r.register(
                "device_memory_used_bytes",
                "Memory in use on a card",
                metrics.card_used.clone(),
            );
            r.register("device_memory_bytes", "All memory of a card", metrics.card_total.clone());
            r.register(
                "device_utilization_percent",
                "How busy a card is",
                metrics.card_busy.clone(),
            );
            r.register(
                "device_in_service",
                "1 if a card takes new work",
                metrics.card_healthy.clone(),
            );
            r.register(
                "device_unexplained_memory_bytes",
                "Memory on a card that no placement explains",
                metrics.card_strange.clone(),
            );
            r.register(
                "container_memory_used_bytes",
                "Memory a container uses of a card",
                metrics.used.clone(),
            );
            r.register(
                "container_memory_limit_bytes",
                "Memory a container may use of a card",
                metrics.limit.clone(),
            );
            r.register(
                "container_utilization_percent",
                "How busy a container keeps a card",
                metrics.busy.clone(),
            );
            r.register(
                "container_throttled_seconds",
                "How long a container's launches were held back",
                metrics.throttled.clone(),
            );
            r.register(
                "container_denied_allocations",
                "Allocations of a container that were denied",
                metrics.denied.clone(),
            );
            r.register(
                "container_counters_unbelievable",
                "1 if a container's own file of counters cannot be read or says what cannot be",
                metrics.unbelievable.clone(),
            );
        });
        metrics.register_own();
        metrics.sees_processes(true);
        metrics
    }

    /// What the agent says of itself.
    fn register_own(&self) {
        self.numbers.register(|r| {
            r.register("agent_starts", "Starts of containers, by outcome", self.starts.clone());
            r.register(
                "agent_start_duration_seconds",
                "Time to make a container ready",
                self.start_seconds.clone(),
            );
            r.register(
                "agent_allocate_duration_seconds",
                "Time to answer Allocate",
                self.allocate_seconds.clone(),
            );
            r.register("agent_collected", "Leftovers removed", self.collected.clone());
            r.register("agent_gpus", "Cards that answer", self.answering.clone());
            r.register(
                "agent_sees_processes",
                "0 if the processes on the cards cannot be matched with pods",
                self.seeing.clone(),
            );
            r.register(
                "agent_plugin_watched",
                "1 if the kubelet reads the plugin's list",
                self.plugins.clone(),
            );
            r.register(
                "agent_registrations",
                "How often the kubelet took the plugin in",
                self.registrations.clone(),
            );
        });
    }

    /// How a plugin stands with the kubelet.
    pub fn plugin(&self, resource: &str, watched: bool, registrations: u64) {
        let plugin = Plugin { resource: resource.to_owned() };
        self.plugins.get_or_create(&plugin).set(u64::from(watched));
        self.registrations.get_or_create(&plugin).inner().store(registrations, Ordering::Relaxed);
    }

    /// What was measured last.
    pub fn latest(&self) -> Arc<Picture> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A start ended, well or not.
    pub fn started(&self, resource: &str, well: bool, after: Duration) {
        let outcome = if well { "ready" } else { "refused" }.to_owned();
        self.starts.get_or_create(&Outcome { resource: resource.to_owned(), outcome }).inc();
        self.start_seconds.observe(after.as_secs_f64());
    }

    /// An Allocate was answered.
    pub fn allocated(&self, after: Duration) {
        self.allocate_seconds.observe(after.as_secs_f64());
    }

    /// So many leftovers were removed.
    pub fn collected(&self, count: usize) {
        self.collected.inc_by(count as u64);
    }

    /// What is known of the container runtime, and how devices come into containers.
    pub fn way(&self, cdi: Cdi, way: Way) {
        self.cdi.set(match cdi {
            Cdi::Unknown => -1,
            Cdi::Resolved => 1,
            Cdi::Ignored | Cdi::Missed => 0,
        });
        self.by_folders.set(i64::from(way == Way::Folders));
    }

    /// So many cards answer.
    pub fn cards_that_answer(&self, count: usize) {
        self.answering.set(count as u64);
    }

    /// Whether the processes on the cards can be seen.
    pub fn sees_processes(&self, seen: bool) {
        self.seeing.set(u64::from(seen));
    }

    /// Replaces all that was measured before.
    pub fn measured(&self, picture: Picture) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(picture);
    }

    /// Puts what was measured into the families. They are filled for a scrape and emptied after it: on
    /// a full node they would be the larger part of what the agent keeps, and made anew with every look.
    fn fill(&self, picture: &Picture) {
        self.cards(picture);
        for one in &picture.uses {
            let container = one.container.as_deref().unwrap_or_default();
            let tenant = self.tenant(picture, &one.device, &one.pod_name, container);
            self.used.get_or_create(&tenant).set(one.used);
            self.limit.get_or_create(&tenant).set(one.limit);
            self.busy.get_or_create(&tenant).set(u64::from(one.busy));
        }
        for one in picture.counted.get() {
            let tenant = self.tenant(picture, &one.device, &one.pod_name, &one.container);
            let plain = one.counters.filter(|counters| !counters.implausible);
            self.unbelievable.get_or_create(&tenant).set(u64::from(plain.is_none()));
            let Some(counters) = one.counters else { continue };
            let seconds = Duration::from_nanos(counters.throttled).as_secs_f64();
            let throttled = self.throttled.get_or_create(&tenant);
            throttled.inner().store(seconds.to_bits(), Ordering::Relaxed);
            self.denied.get_or_create(&tenant).inner().store(counters.denied, Ordering::Relaxed);
        }
    }

    fn empty(&self) {
        for family in [&self.used, &self.limit, &self.busy, &self.unbelievable] {
            family.clear();
        }
        for family in [
            &self.card_used,
            &self.card_total,
            &self.card_busy,
            &self.card_healthy,
            &self.card_strange,
        ] {
            family.clear();
        }
        self.throttled.clear();
        self.denied.clear();
    }

    fn tenant(&self, picture: &Picture, device: &DeviceId, pod: &str, container: &str) -> Tenant {
        let (namespace, pod) = pod.split_once('/').unwrap_or(("", pod));
        Tenant {
            gpu: picture.index(device).map(|index| index.to_string()).unwrap_or_default(),
            UUID: device.to_string(),
            Hostname: self.node.clone(),
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
        }
    }

    fn cards(&self, picture: &Picture) {
        for device in &picture.inventory.devices {
            let card = Card {
                gpu: device.index.to_string(),
                UUID: device.id.to_string(),
                modelName: device.model.to_string(),
                Hostname: self.node.clone(),
            };
            let well = u64::from(device.health == Health::Healthy);
            self.card_healthy.get_or_create(&card).set(well);
            if let Some(now) = picture.measured.iter().find(|now| now.device == device.id) {
                self.card_used.get_or_create(&card).set(now.used);
                self.card_total.get_or_create(&card).set(now.total);
                if let Some(busy) = now.busy {
                    self.card_busy.get_or_create(&card).set(u64::from(busy));
                }
            }
            let strange = picture.strangers.iter().filter(|one| one.device == device.id);
            self.card_strange.get_or_create(&card).set(strange.map(|one| one.memory).sum());
        }
    }

    /// The text of a scrape. Blocks: what containers say of themselves is read for it.
    pub fn text(&self) -> String {
        let text = {
            let _turn = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
            self.fill(&self.latest());
            let text = self.numbers.text();
            self.empty();
            text
        };
        if !self.originals {
            return text;
        }
        // The end is told by a line of its own.
        let (own, end) = text.split_at(text.rfind("# EOF").unwrap_or(text.len()));
        format!("{own}{}{end}", originals::text(&self.latest(), &self.node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Counted;
    use crate::tests::picture;

    #[test]
    fn cards_carry_the_labels_of_nvidias_exporter() {
        let metrics = Metrics::new("n1", Originals::No);
        metrics.measured(picture());
        let text = metrics.text();
        let line = r#"nanogpu_device_in_service{gpu="0",UUID="GPU-0",modelName="Tesla T4",Hostname="n1"} 1"#;
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("container_gpu_utilization"), "they were not asked for");
        metrics.measured(Picture::default());
        assert!(!metrics.text().contains("GPU-0"), "what is gone is not shown");
    }

    #[test]
    fn what_containers_count_is_told_as_far_as_it_can_be_believed() {
        let metrics = Metrics::new("n1", Originals::No);
        metrics.measured(picture());
        let text = metrics.text();
        let of =
            r#"{gpu="1",UUID="GPU-1",Hostname="n1",namespace="team",pod="a",container="main"}"#;
        for line in [
            format!("nanogpu_container_throttled_seconds_total{of} 1.5"),
            format!("nanogpu_container_denied_allocations_total{of} 3"),
            format!("nanogpu_container_counters_unbelievable{of} 0"),
        ] {
            assert!(text.contains(&line), "no {line} in {text}");
        }
        let known = picture();
        let hostile = Counted { counters: None, ..known.counted.get()[0].clone() };
        metrics.measured(Picture { counted: vec![hostile].into(), ..known });
        let text = metrics.text();
        assert!(text.contains(&format!("nanogpu_container_counters_unbelievable{of} 1")), "{text}");
        assert!(!text.contains(&format!("denied_allocations_total{of}")), "{text}");
    }

    #[test]
    fn the_original_names_come_before_the_end() {
        let metrics = Metrics::new("n1", Originals::Too);
        metrics.measured(picture());
        let text = metrics.text();
        assert!(text.contains("pod_core_usage{") && text.ends_with("# EOF\n"), "{text}");
    }
}
