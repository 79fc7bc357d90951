//! `inspect`: a table of cards and who holds them.

use std::fmt::Write as _;

use crate::numbers::{counted, percent};
use crate::output::table;
use crate::view::{Card, Held, Node, Source, State, View};
use crate::wire::Agent;

/// Our table. `wide` adds UUIDs, and what each pod holds.
pub fn page(view: &View, wide: bool) -> String {
    let mut text = notices(view);
    if view.nodes.is_empty() {
        text.push_str("No node has a card that nanogpu knows of.\n");
        return text;
    }
    let mut head = vec!["NODE", "CARD", "MODEL", "STATE", "COMPUTE", "MEMORY(MiB)", "PODS"];
    if wide {
        head.insert(3, "UUID");
        head.insert(7, "STRANGERS(MiB)");
    }
    let mut rows = Vec::new();
    for node in &view.nodes {
        for card in &node.cards {
            let mut row = vec![
                node.name.clone(),
                card.index.to_string(),
                card.model.clone(),
                state(node, card).to_owned(),
                format!("{}/{}", card.cores_held, card.cores),
                format!("{}/{}", card.memory_held, card.memory),
                pods(card, wide),
            ];
            if wide {
                row.insert(3, card.uuid.clone());
                row.insert(7, card.strangers.to_string());
            }
            rows.push(row);
        }
    }
    text.push_str(&table(&head, rows));
    text.push('\n');
    text.push_str(&totals(view));
    text
}

/// What must be known to read what follows.
pub(crate) fn notices(view: &View) -> String {
    let mut text = String::new();
    if let Source::Cluster { because } = &view.source {
        let _ = writeln!(text, "The scheduler was not asked: {because}");
        text.push_str("Shown is what annotations of pods and nodes say.\n\n");
    }
    for hidden in &view.hidden {
        let _ = writeln!(text, "{hidden}\n");
    }
    for node in &view.nodes {
        if let Some(problem) = &node.problem {
            let _ = writeln!(text, "{} takes nothing new: {problem}\n", node.name);
        }
    }
    text
}

/// All of it in one line.
pub(crate) fn totals(view: &View) -> String {
    let sum = |of: fn(&Card) -> u64| view.cards().map(of).sum::<u64>();
    let cores = percent(sum(|card| card.cores_held.into()), sum(|card| card.cores.into()));
    let memory = percent(sum(|card| card.memory_held), sum(|card| card.memory));
    let mut holders: Vec<(&str, &str)> = view
        .cards()
        .flat_map(|card| &card.held_by)
        .map(|held| (held.namespace.as_str(), held.pod.as_str()))
        .collect();
    holders.sort_unstable();
    holders.dedup();
    let nodes = counted(view.nodes.len(), "node");
    let cards = counted(view.cards().count(), "card");
    let hold = if holders.len() == 1 { "holds" } else { "hold" };
    let mut text = format!(
        "{nodes}, {cards}: {cores}% of compute and {memory}% of memory promised; {} {hold} cards",
        counted(holders.len(), "pod")
    );
    if !view.waiting.is_empty() {
        let wait = if view.waiting.len() == 1 { "waits" } else { "wait" };
        let _ = write!(text, ", {} more {wait}", view.waiting.len());
    }
    text.push('\n');
    text
}

/// A word for whether a card takes new pods.
pub(crate) fn state(node: &Node, card: &Card) -> &'static str {
    match (card.state, node.agent) {
        // What is wrong with the card itself outlasts the agent's silence.
        (State::Cordoned | State::Sick | State::Withheld, _) | (_, Agent::Fresh) => {
            card.state.word()
        }
        (_, Agent::Stale) => "silent",
        (_, Agent::Never) => "no-agent",
    }
}

fn pods(card: &Card, wide: bool) -> String {
    let one = |held: &Held| {
        let name = format!("{}/{}", held.namespace, held.pod);
        if wide { format!("{name} ({})", portion(held)) } else { name }
    };
    let all: Vec<String> = card.held_by.iter().map(one).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// What a pod holds, in words.
pub(crate) fn portion(held: &Held) -> String {
    if held.whole {
        return "whole".to_owned();
    }
    format!("{}% {} MiB", held.cores, crate::numbers::grouped(held.memory))
}
