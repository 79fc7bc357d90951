//! `why`: the story of one pod. First what a person asked, in a sentence; then the numbers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use dialect::Settings;
use model::codec::decode_placement;
use model::{MemoryAsk, Part, Placement, Pod, Portion, names};

use crate::numbers::{counted, grouped};
use crate::output::table;
use crate::wire::{Device, NodeRefusal, Pending, Quota, Why};

/// How many nodes are listed unless all are wanted.
const MOST: usize = 10;

/// A pod, as the API server has it.
#[derive(Debug, Clone)]
pub struct Asker {
    /// The pod.
    pub pod: Pod,
    /// `Pending`, `Running` and so on.
    pub phase: String,
    /// What kube-scheduler last said of it.
    pub condition: Option<String>,
}

/// What is known besides the answer; each may be empty, as not everyone may see it.
#[derive(Debug, Clone, Default)]
pub struct Around {
    /// Cards.
    pub cards: Vec<Device>,
    /// What namespaces may hold.
    pub quotas: Vec<Quota>,
}

impl Asker {
    /// Reads a pod as the API server prints it.
    pub fn new(json: &serde_json::Value) -> Result<Self, model::pod::PodError> {
        let pod = Pod::from_json(&json.to_string())?;
        let status = &json["status"];
        let phase = status["phase"].as_str().unwrap_or("Pending").to_owned();
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let unscheduled = |condition: &&serde_json::Value| {
            condition["type"] == "PodScheduled" && condition["status"] == "False"
        };
        let condition = conditions.into_iter().find(unscheduled);
        let condition = condition.and_then(|it| it["message"].as_str()).map(str::to_owned);
        Ok(Self { pod, phase, condition })
    }

    fn name(&self) -> String {
        format!("{}/{}", self.pod.id.namespace, self.pod.id.name)
    }

    /// What it asks for, as written.
    fn asks(&self) -> Option<String> {
        let all = Settings::all_dialects();
        let ours = all.enabled.iter().flat_map(|dialect| {
            dialect.identity_resources().iter().chain(dialect.measure_resources()).copied()
        });
        let mut ours: Vec<&str> = ours.collect();
        ours.sort_unstable();
        ours.dedup();
        let containers = self.pod.containers.iter().filter_map(|container| {
            let asked =
                ours.iter().filter_map(|name| Some(format!("{name} {}", container.asks(name)?)));
            let asked: Vec<String> = asked.collect();
            (!asked.is_empty())
                .then(|| format!("{} (container {})", asked.join(", "), container.name))
        });
        let containers: Vec<String> = containers.collect();
        (!containers.is_empty()).then(|| containers.join("; "))
    }

    fn placement(&self) -> Option<Placement> {
        decode_placement(self.pod.annotations.get(names::PLACEMENT)?).ok()
    }
}

/// The story. `all` lists every node.
pub fn page(asker: &Asker, answer: &Why, around: &Around, all: bool) -> String {
    let name = asker.name();
    match answer {
        Why::Bound { node } => bound(asker, node.as_deref(), around),
        Why::Refused { reason } => {
            let asks = asks(asker);
            format!(
                "Pod {name} can never run as it is written.\n{asks}\n  {reason}\n\nWhat would help:\n  - change the pod, and create it again\n"
            )
        }
        Why::Pending(pending) => waiting(asker, pending, around, all),
    }
}

/// What can be said without the scheduler.
pub fn without_scheduler(asker: &Asker, because: &str) -> String {
    let mut text = if asker.pod.node.is_some() {
        bound(asker, None, &Around::default())
    } else {
        let said = asker.condition.as_deref().unwrap_or("nothing yet: it has not been tried");
        let asks = asks(asker);
        format!("Pod {} waits.\n{asks}\nkube-scheduler says:\n  {said}\n", asker.name())
    };
    let _ = write!(text, "\nThe scheduler was not asked: {because}\n");
    text
}

fn asks(asker: &Asker) -> String {
    match asker.asks() {
        Some(asks) => format!("It asks for {asks}.\n"),
        None => "It asks for no card.\n".to_owned(),
    }
}

fn bound(asker: &Asker, node: Option<&str>, around: &Around) -> String {
    let on = asker.pod.node.as_ref().map(model::NodeName::as_str).or(node).unwrap_or("its node");
    let mut text = match asker.phase.as_str() {
        "Succeeded" | "Failed" => {
            return format!(
                "Pod {} has ended ({}) and holds no card.\n",
                asker.name(),
                asker.phase
            );
        }
        "Running" => format!("Pod {} runs on {on}.\n", asker.name()),
        _ => format!("Pod {} is bound to {on} and starting ({}).\n", asker.name(), asker.phase),
    };
    text.push_str(&asks(asker));
    let Some(placement) = asker.placement() else {
        text.push_str(
            "\nIt has no placement of nanogpu: another system placed it, or it asks for no card.\n",
        );
        return text;
    };
    text.push('\n');
    for container in placement.containers() {
        for grant in &container.grants {
            let card = around.cards.iter().find(|card| card.uuid == grant.device.as_str());
            let which = match card {
                Some(card) => {
                    format!("card {} of {on}, {} ({})", card.index, card.model, card.uuid)
                }
                None => format!("card {}", grant.device),
            };
            let what = match grant.portion {
                Portion::Whole => "the whole of".to_owned(),
                Portion::Share(share) if share.cores.is_zero() => {
                    format!("{} MiB of", grouped(share.memory.0))
                }
                Portion::Share(share) => {
                    format!(
                        "{}% of the compute and {} MiB of",
                        share.cores.0,
                        grouped(share.memory.0)
                    )
                }
            };
            let _ = writeln!(text, "  container {} has {what} {which}", container.name);
        }
    }
    text
}

fn waiting(asker: &Asker, pending: &Pending, around: &Around, all: bool) -> String {
    let mut text = format!("Pod {} {}\n", asker.name(), lead(asker, pending, around));
    text.push_str(&asks(asker));
    if !pending.fits.is_empty() {
        text.push_str(&fits(asker, &pending.fits));
        return text;
    }
    let _ = write!(text, "\n  {}\n", pending.summary);
    let mut refused: Vec<&NodeRefusal> = pending.refused.iter().collect();
    // The nearest first: those where waiting helps, with the most to offer.
    refused.sort_by_key(|it| {
        let best = std::cmp::Reverse((it.best.memory, it.best.cores));
        (it.for_good, best, it.node.clone())
    });
    if !refused.is_empty() {
        let shown = if all { refused.len() } else { MOST };
        let rows = refused.iter().take(shown).map(|it| row(it)).collect();
        text.push('\n');
        text.push_str(&table(&["NODE", "WHY NOT", "MOST FREE ON ONE CARD", "WAITING HELPS"], rows));
        if refused.len() > shown {
            let more = grouped((refused.len() - shown) as u64);
            let _ = writeln!(text, "and {more} more; -o wide lists them all");
        }
    }
    text.push_str(&details(asker, pending, around));
    let evicting = pending.preemption.now.as_deref();
    let mut helps: Vec<&String> =
        pending.what_would_help.iter().filter(|help| Some(help.as_str()) != evicting).collect();
    // Every cluster has nodes without cards; that more could have some is the last resort.
    helps.sort_by_key(|help| help.starts_with("nodes with cards"));
    if !helps.is_empty() {
        text.push_str("\nWhat would help:\n");
        for help in helps {
            let _ = writeln!(text, "  - {help}");
        }
    }
    text.push_str(&evictions(pending));
    for note in &pending.notes {
        let _ = write!(text, "\nNote: {note}\n");
    }
    text
}

fn fits(asker: &Asker, nodes: &[String]) -> String {
    let shown = nodes.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if nodes.len() > MOST { ", ..." } else { "" };
    let id = &asker.pod.id;
    format!(
        "\n  {} could take it now: {shown}{more}\n\nkube-scheduler tries it again by itself. If it stays, kubectl describe pod -n {} {} has what\nkube-scheduler itself objects to, such as taints or affinity.\n",
        counted(nodes.len(), "node"),
        id.namespace,
        id.name,
    )
}

fn row(refusal: &NodeRefusal) -> Vec<String> {
    let best = &refusal.best;
    // What a node without an agent has is not on offer.
    let silent = refusal.code == "no-agent" || best.cards == 0;
    let free = if silent || (best.memory == 0 && best.cores == 0) {
        "-".to_owned()
    } else {
        format!("{}% compute, {} MiB", best.cores, grouped(best.memory))
    };
    let helps = if refusal.for_good { "no" } else { "yes" };
    vec![refusal.node.clone(), refusal.reason.clone(), free, helps.to_owned()]
}

/// The sentence a person asked for.
fn lead(asker: &Asker, pending: &Pending, around: &Around) -> String {
    if let Some(node) = &pending.reserved_on {
        return format!("is being bound: its cards on {node} are held for it.");
    }
    if let Some(node) = pending.fits.first() {
        return format!("is about to be placed: it fits on {node} now.");
    }
    if let Some(node) = &pending.nominated {
        return format!("waits for room on {node}: other pods are leaving for it.");
    }
    let Some(code) = main_cause(pending) else {
        return "waits: there is no node at all.".to_owned();
    };
    if matches!(code, "cores-short" | "memory-short")
        && let Some(pieces) = in_pieces(asker, pending, around)
    {
        return format!("waits: {pieces}");
    }
    let why = match code {
        "no-agent" | "no-cards" => "no node has a card that nanogpu knows of.",
        "stale-agent" => "the agents of the nodes that might take it have fallen silent.",
        "bad-inventory" | "bad-holder" => {
            "something on the nodes that might take it cannot be read, so they are closed."
        }
        "pool" => "its namespace may not use the nodes that have cards.",
        "no-match" => "no node has a card of the kind it asks for.",
        "too-few-cards" => "no node has as many cards as it asks for.",
        "card-too-weak" | "card-too-small" => "no card is large enough for it, even an empty one.",
        "too-far-apart" => "no node has that many cards as near to one another as it requires.",
        "out-of-service" => "the cards that would do are out of service.",
        "not-idle" => "too few cards are wholly free.",
        "cores-short" => "no card has enough compute free.",
        "memory-short" => "no card has enough memory free.",
        "fragmented" => "some cards have the compute free and others the memory, none has both.",
        "near-taken" => "enough cards are free, but not enough that are near to one another.",
        "not-offered" => "no node offers the resource by which it asks.",
        "tickets-short" => "the resource by which it asks is used up, though cards have room.",
        "host-short" => "cards have room, but their hosts have too little CPU or memory left.",
        "quota" => "cards have room, but its namespace has no quota left.",
        "not-together" => "no node has room for all its containers together.",
        "gave-up" => "there are too many ways to place its containers to try them all.",
        _ => "no node can take it now.",
    };
    format!("waits: {why}")
}

/// The reason most nodes give. One that may go away outranks one that will not: a cluster is full of
/// nodes that never had a card.
fn main_cause(pending: &Pending) -> Option<&str> {
    let mut counts: BTreeMap<(bool, bool, &str), usize> = BTreeMap::new();
    for refusal in &pending.refused {
        let bare = matches!(refusal.code.as_str(), "no-agent" | "no-cards");
        *counts.entry((!bare, !refusal.for_good, refusal.code.as_str())).or_default() += 1;
    }
    let first = counts
        .iter()
        .max_by_key(|((with_cards, may_end, _), count)| (*with_cards, *may_end, **count));
    first.map(|((_, _, code), _)| *code)
}

/// Where a node has enough in all, but no single card has.
fn in_pieces(asker: &Asker, pending: &Pending, around: &Around) -> Option<String> {
    // Units of some dialects are a setting of the scheduler's, which is not known here; a wrong
    // guess would ask for more, so at worst nothing is said.
    let read = dialect::read(&asker.pod, &Settings::default()).ok()??;
    let [container] = &read.request.containers[..] else { return None };
    let Part::Share { cores, memory } = container.part else { return None };
    let memory = match memory {
        MemoryAsk::Exact(memory) => memory.0,
        MemoryAsk::Percent(_) => 0,
    };
    let short = |node: &str| pending.refused.iter().any(|it| it.node == node && !it.for_good);
    let mut free: BTreeMap<&str, (u32, u64)> = BTreeMap::new();
    for card in around.cards.iter().filter(|card| card.sells && short(&card.node)) {
        let sum = free.entry(&card.node).or_default();
        *sum = (sum.0 + card.cores_free, sum.1 + card.memory_free);
    }
    let enough = |(_, (c, m)): &(&&str, &(u32, u64))| *c >= cores.0 && *m >= memory;
    let (node, (sum, mebibytes)) = free.iter().filter(enough).max_by_key(|(_, sum)| **sum)?;
    let what = if main_cause(pending) == Some("cores-short") {
        format!("{sum}% of a card's compute")
    } else {
        format!("{} MiB", grouped(*mebibytes))
    };
    Some(format!("{node} has {what} free in all, but in pieces: no single card has enough."))
}

/// What the reasons leave open: which cards, which quota, whose agent.
fn details(asker: &Asker, pending: &Pending, around: &Around) -> String {
    let mut text = String::new();
    let nodes = |code: &str| {
        let refused = pending.refused.iter().filter(move |it| it.code == code);
        refused.map(|it| it.node.as_str()).take(MOST).collect::<Vec<_>>()
    };
    for node in nodes("out-of-service") {
        for card in around.cards.iter().filter(|card| card.node == node && !card.sells) {
            let what = match card.health {
                model::Health::Cordoned => {
                    format!("cordoned; kubectl nanogpu uncordon {node}/{} ends that", card.index)
                }
                model::Health::Sick => "sick; events of the node say more".to_owned(),
                model::Health::Healthy => "cut into slices, or listed by two nodes".to_owned(),
            };
            let _ = writeln!(text, "  {node} card {} is {what}", card.index);
        }
    }
    let silent = nodes("stale-agent");
    if !silent.is_empty() {
        let many = counted(silent.len(), "node");
        let _ = writeln!(text, "  {many} not heard for 40 seconds: {}", silent.join(", "));
        text.push_str("  kubectl nanogpu doctor says more\n");
    }
    let namespace = &asker.pod.id.namespace;
    if !nodes("quota").is_empty() {
        for quota in around.quotas.iter().filter(|quota| quota.namespace == *namespace) {
            for rule in &quota.rules {
                let _ = writeln!(text, "  {namespace} holds {}", rule.in_words());
            }
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn evictions(pending: &Pending) -> String {
    let Some(now) = &pending.preemption.now else { return String::new() };
    let mut text = format!("\nEvicting other pods: {now}.\n");
    if now.contains("disruption budget") {
        text.push_str(
            "Pods of lower priority hold what it needs, but a PodDisruptionBudget keeps them: see kubectl get pdb -A.\n",
        );
    }
    if let Some(last) = pending.preemption.last.as_ref().filter(|last| *last != now) {
        let _ = writeln!(text, "When it was last tried: {last}.");
    }
    text
}

/// A pod the scheduler does not know.
pub fn not_ours(asker: &Asker, said: &str) -> String {
    let name = asker.name();
    match asker.asks() {
        None => format!("Pod {name} asks for no card: nanogpu has no say in where it goes."),
        Some(_) if matches!(asker.phase.as_str(), "Succeeded" | "Failed") => {
            format!("Pod {name} has ended ({}) and holds no card.", asker.phase)
        }
        Some(asks) => format!("Pod {name} asks for {asks}, but {said}."),
    }
}
