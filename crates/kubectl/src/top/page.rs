//! One look as text.

use std::fmt::Write as _;

use super::{bar, memory};
use crate::inspect::{notices, portion, state, totals};
use crate::view::{View, Waiting};

/// The page.
pub fn page(view: &View) -> String {
    let mut text = notices(view);
    text.push_str(&totals(view));
    let widest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
    let model = widest(&mut view.cards().map(|card| card.model.chars().count()));
    let held = || view.cards().flat_map(|card| &card.held_by);
    let pod = widest(&mut held().map(|it| it.namespace.len() + 1 + it.pod.len()));
    for node in &view.nodes {
        let _ = write!(text, "\n{}\n", node.name);
        for card in &node.cards {
            let (taken, free) = bar(card.cores_held.into(), card.cores.into());
            let (memory_taken, memory_free) = bar(card.memory_held, card.memory);
            let word = state(node, card);
            let word = if word == "ok" { String::new() } else { format!("  {word}") };
            let _ = writeln!(
                text,
                "  {:>2}  {:<model$}  {taken}{free} {:>3}%  {memory_taken}{memory_free} {}{word}",
                card.index,
                card.model,
                card.cores_held,
                memory(card),
            );
            for held in &card.held_by {
                let name = format!("{}/{}", held.namespace, held.pod);
                let _ = writeln!(text, "      {name:<pod$}  {}", portion(held));
            }
            if card.strangers > 0 {
                let taken = crate::numbers::grouped(card.strangers);
                let _ = writeln!(text, "      {:<pod$}  {taken} MiB", "(strangers)");
            }
        }
    }
    if !view.waiting.is_empty() {
        text.push_str("\nwaiting\n");
        for waiting in &view.waiting {
            let _ = writeln!(text, "  {}", line(waiting));
        }
    }
    text
}

/// A pod that waits, with what is known at once; `why` knows more.
pub(super) fn line(waiting: &Waiting) -> String {
    let name = format!("{}/{}", waiting.namespace, waiting.pod);
    match (&waiting.refused, &waiting.nominated) {
        (Some(refused), _) => format!("{name}  can never run: {refused}"),
        (None, Some(node)) => format!("{name}  room is being made on {node}"),
        (None, None) => name,
    }
}
