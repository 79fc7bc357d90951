//! The scheduler's own numbers. `docs/scheduler.md` has the list for users.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Allowance, Cores, Node};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use telemetry::{Numbers, durations};

use crate::state::Handle;

/// A verb of the extender.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Verb {
    /// Which.
    pub verb: &'static str,
}

/// Why something did not happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// A short code.
    pub reason: &'static str,
}

/// How something ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// A short code.
    pub outcome: &'static str,
}

/// What is counted.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// How long verbs take.
    pub verbs: Family<Verb, Histogram, fn() -> Histogram>,
    /// Nodes refused, by reason.
    pub refusals: Family<Reason, Counter>,
    /// Pods that can never run as written.
    pub never: Counter,
    /// Binds, by how they ended.
    pub binds: Family<Outcome, Counter>,
    /// Bindings that met a pod which had changed.
    pub conflicts: Counter,
    /// Pods touched to wake them.
    pub wakes: Counter,
    /// Pods evicted for others.
    pub evictions: Counter,
    /// Lookings for victims, by how they ended.
    pub preemptions: Family<Outcome, Counter>,
    /// Requests turned away, by reason.
    pub turned_away: Family<Reason, Counter>,
    /// Admission reviews, by how they ended.
    pub reviews: Family<Outcome, Counter>,
    /// Whether this replica leads.
    pub leader: Gauge,
    /// Pods that we refused and that wait.
    pub waiting: Gauge,
}

impl Metrics {
    /// Registers them all.
    pub fn new(numbers: &Numbers) -> Self {
        let metrics = Self {
            verbs: Family::new_with_constructor(durations),
            refusals: Family::default(),
            never: Counter::default(),
            binds: Family::default(),
            conflicts: Counter::default(),
            wakes: Counter::default(),
            evictions: Counter::default(),
            preemptions: Family::default(),
            turned_away: Family::default(),
            reviews: Family::default(),
            leader: Gauge::default(),
            waiting: Gauge::default(),
        };
        let m = metrics.clone();
        numbers.register(|r| {
            r.register("scheduler_verb_duration_seconds", "How long verbs take", m.verbs);
            r.register("scheduler_refusals", "Nodes refused in filter, by reason", m.refusals);
            r.register("scheduler_never", "Filter calls for pods that can never run", m.never);
            r.register("scheduler_binds", "Binds, by how they ended", m.binds);
            r.register("scheduler_conflicts", "Bindings of pods that had changed", m.conflicts);
            r.register("scheduler_wakes", "Waiting pods touched because they fit now", m.wakes);
            r.register("scheduler_evictions", "Pods evicted for others by the leader", m.evictions);
            r.register("scheduler_preemptions", "Searches for victims, by outcome", m.preemptions);
            r.register("scheduler_turned_away", "Requests turned away, by reason", m.turned_away);
            r.register("scheduler_admission_reviews", "Admission reviews, by outcome", m.reviews);
            r.register("scheduler_leader", "1 if this replica leads", m.leader);
            r.register("scheduler_waiting_pods", "Pods refused everywhere that wait", m.waiting);
        });
        metrics
    }
}

/// Capacity and use, read from the newest picture at every scrape.
#[derive(Debug)]
pub struct Capacity {
    handle: Handle,
}

impl Capacity {
    /// Registers what `handle` shows.
    pub fn register(handle: Handle, numbers: &Numbers) {
        numbers.register(|registry| registry.register_collector(Box::new(Self { handle })));
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Card {
    node: String,
    uuid: String,
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ruled {
    namespace: String,
    model: String,
    dimension: &'static str,
}

/// A number of a card.
type OfCard = fn(&model::DeviceState) -> f64;

const MIB: f64 = 1024.0 * 1024.0;

#[expect(clippy::cast_precision_loss, reason = "a card's memory is far below 2^53 bytes")]
const CARD_NUMBERS: [(&str, &str, OfCard); 7] = [
    ("device_memory_bytes", "Memory of a card", |s| s.device.memory.0 as f64 * MIB),
    ("device_memory_allocated_bytes", "Memory sold", |s| s.used.hold.memory.0 as f64 * MIB),
    ("device_memory_free_bytes", "Memory that can be sold", |s| s.free_memory().0 as f64 * MIB),
    ("device_cores_ratio", "Compute of a card", |s| ratio(s.device.cores)),
    ("device_cores_allocated_ratio", "Compute sold", |s| ratio(s.used.hold.cores)),
    ("device_cores_free_ratio", "Compute that can be sold", |s| ratio(s.free_cores())),
    ("device_sells", "1 if the card takes new pods", |s| f64::from(u8::from(s.sells()))),
];

fn ratio(cores: Cores) -> f64 {
    f64::from(cores.0) / 100.0
}

/// Compute that is free on cards, by model, but for which the host has no CPU or memory left.
fn stranded(node: &Node) -> BTreeMap<String, f64> {
    let no_host = node.free.cpu.is_zero() || node.free.memory.is_zero();
    let mut models = BTreeMap::new();
    for state in &node.devices {
        let free = if no_host && state.sells() { ratio(state.free_cores()) } else { 0.0 };
        *models.entry(state.device.model.to_string()).or_default() += free;
    }
    models
}

impl Collector for Capacity {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let picture = self.handle.picture();
        let nodes = picture.snapshot.nodes();
        for (name, help, number) in CARD_NUMBERS {
            let mut metric = encoder.encode_descriptor(
                name,
                help,
                None,
                prometheus_client::metrics::MetricType::Gauge,
            )?;
            for node in nodes {
                for state in &node.devices {
                    let card = Card {
                        node: node.name.to_string(),
                        uuid: state.device.id.to_string(),
                        model: state.device.model.to_string(),
                    };
                    ConstGauge::new(number(state)).encode(metric.encode_family(&card)?)?;
                }
            }
        }
        let mut metric = encoder.encode_descriptor(
            "node_cores_stranded_ratio",
            "Compute free on cards of a node whose host is full",
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        for node in nodes {
            for (model, stranded) in stranded(node) {
                let labels = [("node", node.name.to_string()), ("model", model)];
                ConstGauge::new(stranded).encode(metric.encode_family(&labels)?)?;
            }
        }
        quota(&mut encoder, picture.snapshot.allowances())?;
        let mut metric = encoder.encode_descriptor(
            "quota_last_good",
            "1 if a quota cannot be read or is gone, so that the last good one is in force",
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        for (source, state) in picture.quotas.iter() {
            let labels = [("source", *source)];
            let kept = i64::from(state.keeps_the_last());
            ConstGauge::new(kept).encode(metric.encode_family(&labels)?)?;
        }
        let reserved = ConstGauge::new(i64::try_from(picture.reserved.len()).unwrap_or(i64::MAX));
        let metric = encoder.encode_descriptor(
            "scheduler_reservations",
            "Shares held for pods that are not bound yet",
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        reserved.encode(metric)
    }
}

fn quota(
    encoder: &mut DescriptorEncoder<'_>,
    allowances: &BTreeMap<String, Allowance>,
) -> Result<(), std::fmt::Error> {
    for (name, help, used) in [
        ("quota_limit", "What a namespace may hold: cards, cores as a ratio, bytes", false),
        ("quota_used", "What a namespace holds: cards, cores as a ratio, bytes", true),
    ] {
        let gauge = prometheus_client::metrics::MetricType::Gauge;
        let mut metric = encoder.encode_descriptor(name, help, None, gauge)?;
        for (namespace, allowance) in allowances {
            for rule in &allowance.rules {
                #[expect(clippy::cast_precision_loss, reason = "quotas are far below 2^53")]
                let dimensions = [
                    ("cards", rule.cap.cards.map(|n| n as f64), rule.used.cards as f64),
                    ("cores", rule.cap.cores.map(ratio), ratio(rule.used.cores)),
                    (
                        "memory",
                        rule.cap.memory.map(|m| m.0 as f64 * MIB),
                        rule.used.memory.0 as f64 * MIB,
                    ),
                ];
                for (dimension, cap, held) in dimensions {
                    let Some(cap) = cap else { continue };
                    let model = rule.model.to_string();
                    let labels = Ruled { namespace: namespace.clone(), model, dimension };
                    let value = if used { held } else { cap };
                    ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
    }
    Ok(())
}

/// Shared by everything that counts.
pub type Shared = Arc<Metrics>;
