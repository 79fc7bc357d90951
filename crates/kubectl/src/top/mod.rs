//! `top`: nodes, cards as bars, and pods; live on a terminal, as text elsewhere.

mod page;
mod screen;

pub use page::page;
pub use screen::{Screen, Seen, draw, run};

use crate::numbers::grouped;
use crate::view::Card;

/// How wide a bar is.
const BAR: usize = 20;

/// A bar of `BAR` places: what is taken, what is free.
fn bar(taken: u64, of: u64) -> (String, String) {
    let of = of.max(1);
    // Any use shows, and only a full card looks full.
    let full = taken.saturating_mul(BAR as u64) / of;
    let full = usize::try_from(full).unwrap_or(BAR).min(BAR);
    let full = if taken > 0 && full == 0 { 1 } else { full };
    ("█".repeat(full), "░".repeat(BAR - full))
}

fn memory(card: &Card) -> String {
    format!("{} of {} MiB", grouped(card.memory_held), grouped(card.memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_use_shows_and_only_a_full_card_looks_full() {
        let width = |taken, of| bar(taken, of).0.chars().count();
        assert_eq!([width(0, 100), width(1, 100), width(50, 100)], [0, 1, 10]);
        assert_eq!([width(99, 100), width(100, 100), width(7, 0)], [19, 20, 20]);
    }
}
