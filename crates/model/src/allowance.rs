//! What a namespace may still take, by card model. Computed by the ledger's quota, obeyed by
//! placement, shown to people.

use std::fmt;

use crate::device::CardModel;
use crate::peak::Hold;
use crate::units::{Cores, Mebibytes};

/// What one namespace may take. The default has no limits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allowance {
    /// Limits, each for the models it names. All that match a card apply to it.
    pub rules: Vec<Rule>,
    /// What holds for models that no rule names.
    pub unlisted: Unlisted,
    /// The pools it may use; empty means any.
    pub pools: Vec<String>,
}

/// What holds for models that no rule of a namespace names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unlisted {
    /// They are free to use.
    #[default]
    Allowed,
    /// They are not to be used.
    Refused,
}

/// One limit and what is used of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Which models it counts.
    pub model: ModelPattern,
    /// The most of it.
    pub cap: Cap,
    /// What is used.
    pub used: Amount,
}

/// What pods take of cards: each card a pod has a part of counts one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Cards, or parts of cards.
    pub cards: u64,
    /// Compute.
    pub cores: Cores,
    /// Memory.
    pub memory: Mebibytes,
}

impl Amount {
    /// What one hold counts.
    pub fn of(hold: &Hold) -> Self {
        Self { cards: 1, cores: hold.cores, memory: hold.memory }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            cards: self.cards.saturating_add(other.cards),
            cores: self.cores + other.cores,
            memory: self.memory + other.memory,
        }
    }
}

/// The most that may be taken; nothing in a dimension means no limit there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cap {
    /// Cards, or parts of cards.
    pub cards: Option<u64>,
    /// Compute.
    pub cores: Option<Cores>,
    /// Memory.
    pub memory: Option<Mebibytes>,
}

impl Cap {
    /// Whether `amount` stays within.
    pub fn admits(&self, amount: &Amount) -> bool {
        self.cards.is_none_or(|cap| amount.cards <= cap)
            && self.cores.is_none_or(|cap| amount.cores <= cap)
            && self.memory.is_none_or(|cap| amount.memory <= cap)
    }

    /// What is left beside `used`, in the dimensions that are limited.
    #[must_use]
    pub fn left(&self, used: &Amount) -> Self {
        Self {
            cards: self.cards.map(|cap| cap.saturating_sub(used.cards)),
            cores: self.cores.map(|cap| cap.saturating_sub(used.cores)),
            memory: self.memory.map(|cap| cap.saturating_sub(used.memory)),
        }
    }
}

impl Rule {
    fn admits(&self, wanted: &[(&CardModel, Hold)]) -> bool {
        let counted = || wanted.iter().filter(|(model, _)| self.model.matches(model));
        let amount = counted().fold(self.used, |sum, (_, hold)| sum.plus(&Amount::of(hold)));
        // A rule that is already exceeded bars only what it counts.
        counted().next().is_none() || self.cap.admits(&amount)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.cap.cards.map(|cap| format!("{} of {cap} cards", self.used.cards)),
            self.cap.cores.map(|cap| format!("{} of {cap} compute", self.used.cores)),
            self.cap.memory.map(|cap| format!("{} of {cap}", self.used.memory)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let used = if parts.is_empty() { "no limit".to_owned() } else { parts.join(", ") };
        write!(f, "{}: {used} used", self.model)
    }
}

impl Allowance {
    /// No limits at all.
    pub fn unlimited() -> &'static Self {
        static UNLIMITED: Allowance =
            Allowance { rules: Vec::new(), unlisted: Unlisted::Allowed, pools: Vec::new() };
        &UNLIMITED
    }

    /// Whether nothing needs to be counted.
    pub fn is_unlimited(&self) -> bool {
        self.rules.is_empty() && self.unlisted == Unlisted::Allowed && self.pools.is_empty()
    }

    /// Whether a pod may take all of `wanted` at once.
    pub fn admits(&self, wanted: &[(&CardModel, Hold)]) -> bool {
        let listed = |model: &CardModel| self.rules.iter().any(|rule| rule.model.matches(model));
        let known =
            self.unlisted == Unlisted::Allowed || wanted.iter().all(|(model, _)| listed(model));
        known && self.rules.iter().all(|rule| rule.admits(wanted))
    }

    /// Whether it may use nodes of `pool`.
    pub fn admits_pool(&self, pool: Option<&str>) -> bool {
        self.pools.is_empty() || pool.is_some_and(|pool| self.pools.iter().any(|p| p == pool))
    }
}

/// Which models a rule counts: by whole words, so that `A10` is not `A100`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelPattern {
    text: String,
    words: Vec<String>,
}

impl ModelPattern {
    /// Matches model names that contain the words of `text` in a row; `*` matches all.
    pub fn new(text: &str) -> Self {
        Self { text: text.trim().to_owned(), words: words(text).collect() }
    }

    /// Whether `model` is counted.
    pub fn matches(&self, model: &CardModel) -> bool {
        if self.text == "*" {
            return true;
        }
        let model: Vec<String> = words(&model.0).collect();
        !self.words.is_empty() && model.windows(self.words.len()).any(|run| run == self.words)
    }
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_uppercase)
}

impl fmt::Display for ModelPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text == "*" { f.write_str("all models") } else { f.write_str(&self.text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_models_match_whole_words() {
        let a100 = CardModel::new("NVIDIA A100-SXM4-40GB");
        let table = [("A100", true), ("a100-sxm4", true), ("A10", false), ("SXM4 A100", false)];
        for (pattern, expected) in table {
            assert_eq!(ModelPattern::new(pattern).matches(&a100), expected, "{pattern}");
        }
        assert!(ModelPattern::new("*").matches(&a100));
        assert!(!ModelPattern::new(" ").matches(&a100));
        assert!(ModelPattern::new("P40").matches(&CardModel::new("Tesla P40")));
    }
}
