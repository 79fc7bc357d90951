//! What is measured, for Prometheus. Labels of cards are those of NVIDIA's exporter, so that the two
//! can be joined.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use gpu::Measured;
use model::{Health, Inventory};
use telemetry::Numbers;
use telemetry::metrics::encoding::EncodeLabelSet;
use telemetry::metrics::metrics::counter::Counter;
use telemetry::metrics::metrics::family::Family;
use telemetry::metrics::metrics::gauge::Gauge;
use telemetry::metrics::metrics::histogram::Histogram;

use crate::usage::{Stranger, Use};

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
    card_used: Family<Card, Bytes>,
    card_total: Family<Card, Bytes>,
    card_busy: Family<Card, Bytes>,
    card_healthy: Family<Card, Bytes>,
    card_strange: Family<Card, Bytes>,
    used: Family<Tenant, Bytes>,
    limit: Family<Tenant, Bytes>,
    busy: Family<Tenant, Bytes>,
    collected: Counter,
}

impl Metrics {
    /// Metrics of the agent on `node`.
    pub fn new(node: &str) -> Self {
        let metrics = Self {
            numbers: Numbers::new(),
            node: node.to_owned(),
            starts: Family::default(),
            start_seconds: telemetry::durations(),
            card_used: Family::default(),
            card_total: Family::default(),
            card_busy: Family::default(),
            card_healthy: Family::default(),
            card_strange: Family::default(),
            used: Family::default(),
            limit: Family::default(),
            busy: Family::default(),
            collected: Counter::default(),
        };
        metrics.numbers.register(|r| {
            r.register("agent_starts", "Starts of containers, by outcome", metrics.starts.clone());
            r.register(
                "agent_start_duration_seconds",
                "Time to make a container ready",
                metrics.start_seconds.clone(),
            );
            r.register("agent_collected", "Leftovers removed", metrics.collected.clone());
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
        });
        metrics
    }

    /// A start ended, well or not.
    pub fn started(&self, resource: &str, well: bool, after: Duration) {
        let outcome = if well { "ready" } else { "refused" }.to_owned();
        self.starts.get_or_create(&Outcome { resource: resource.to_owned(), outcome }).inc();
        self.start_seconds.observe(after.as_secs_f64());
    }

    /// So many leftovers were removed.
    pub fn collected(&self, count: usize) {
        self.collected.inc_by(count as u64);
    }

    /// Replaces all that was measured before.
    pub fn measured(
        &self,
        inventory: &Inventory,
        measured: &[Measured],
        uses: &[Use],
        strangers: &[Stranger],
    ) {
        for family in [
            &self.card_used,
            &self.card_total,
            &self.card_busy,
            &self.card_healthy,
            &self.card_strange,
        ] {
            family.clear();
        }
        for family in [&self.used, &self.limit, &self.busy] {
            family.clear();
        }
        for device in &inventory.devices {
            let card = Card {
                gpu: device.index.to_string(),
                UUID: device.id.to_string(),
                modelName: device.model.to_string(),
                Hostname: self.node.clone(),
            };
            let well = u64::from(device.health == Health::Healthy);
            self.card_healthy.get_or_create(&card).set(well);
            if let Some(now) = measured.iter().find(|measured| measured.device == device.id) {
                self.card_used.get_or_create(&card).set(now.used);
                self.card_total.get_or_create(&card).set(now.total);
                if let Some(busy) = now.busy {
                    self.card_busy.get_or_create(&card).set(u64::from(busy));
                }
            }
            let strange = strangers.iter().filter(|stranger| stranger.device == device.id);
            self.card_strange.get_or_create(&card).set(strange.map(|s| s.memory).sum());
        }
        for one in uses {
            let index = inventory.devices.iter().find(|device| device.id == one.device);
            let (namespace, pod) = one.pod_name.split_once('/').unwrap_or(("", &one.pod_name));
            let tenant = Tenant {
                gpu: index.map(|device| device.index.to_string()).unwrap_or_default(),
                UUID: one.device.to_string(),
                Hostname: self.node.clone(),
                namespace: namespace.to_owned(),
                pod: pod.to_owned(),
                container: one.container.clone().unwrap_or_default(),
            };
            self.used.get_or_create(&tenant).set(one.used);
            self.limit.get_or_create(&tenant).set(one.limit);
            self.busy.get_or_create(&tenant).set(u64::from(one.busy));
        }
    }

    /// The text of a scrape.
    pub fn text(&self) -> String {
        self.numbers.text()
    }
}

#[cfg(test)]
mod tests {
    use model::Profile;

    use super::*;

    #[test]
    fn cards_carry_the_labels_of_nvidias_exporter() {
        let metrics = Metrics::new("n1");
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        metrics.measured(&inventory, &[], &[], &[]);
        let text = metrics.text();
        let line = r#"nanogpu_device_in_service{gpu="0",UUID="GPU-0",modelName="Tesla T4",Hostname="n1"} 1"#;
        assert!(text.contains(line), "{text}");
        metrics.measured(&Inventory::default(), &[], &[], &[]);
        assert!(!metrics.text().contains("GPU-0"), "what is gone is not shown");
    }
}
