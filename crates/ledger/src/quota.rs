//! Quota: how much of which cards a namespace may hold.
//!
//! Two inputs: the ConfigMap of gpu-admission as it is, and our own, which counts cards,
//! compute and memory. Multi-card requests count each card. The answer is an [`Allowance`]:
//! what is allowed, what is used, what is left.

use std::collections::BTreeMap;

use model::{Allowance, Amount, Cap, Cores, Mebibytes, ModelPattern, Rule, Unlisted};
use serde::Deserialize;

use crate::account::Spending;

/// The quotas of all namespaces. A namespace without one is not limited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quota {
    namespaces: BTreeMap<String, Limits>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Limits {
    caps: Vec<(ModelPattern, Cap)>,
    unlisted: Unlisted,
    pools: Vec<String>,
}

/// Why a text is no quota. The last good one stays in force.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// Not JSON, or a field of the wrong kind.
    #[error("quota is not the JSON it should be")]
    Json(#[from] serde_json::Error),
    /// Written for a newer nanogpu.
    #[error("quota has version {0}; this build reads version 1")]
    Version(u32),
}

impl Quota {
    /// Reads the value of gpu-admission's `gpu_quota`:
    /// `{"<namespace>":{"quota":{"M40":8},"pool":["public"]}}`, in cards.
    ///
    /// As there, a namespace with a quota may use the models it names and no others.
    pub fn from_gpu_admission(text: &str) -> Result<Self, QuotaError> {
        #[derive(Deserialize)]
        struct Entry {
            #[serde(default)]
            quota: BTreeMap<String, u32>,
            #[serde(default)]
            pool: Vec<String>,
        }
        let entries: BTreeMap<String, Entry> = serde_json::from_str(text)?;
        let limits = |entry: Entry| Limits {
            // Only pools given: every model in them is allowed.
            unlisted: if entry.quota.is_empty() { Unlisted::Allowed } else { Unlisted::Refused },
            caps: entry
                .quota
                .iter()
                .map(|(model, &cards)| {
                    let cores = Some(Cores(cards.saturating_mul(Cores::CARD.0)));
                    (ModelPattern::new(model), Cap { cores, ..Cap::default() })
                })
                .collect(),
            pools: entry.pool,
        };
        let namespaces = entries.into_iter().map(|(name, entry)| (name, limits(entry))).collect();
        Ok(Self { namespaces })
    }

    /// Reads our own form:
    ///
    /// ```json
    /// {"version": 1, "namespaces": {"team-a": {
    ///   "models": {"A100": {"cards": 8, "cores": 400, "memoryMiB": 163840}, "*": {"cards": 20}},
    ///   "others": "allowed", "pools": ["public"]}}}
    /// ```
    ///
    /// `*` counts all models together. `others` says whether models that no entry names may be
    /// used; allowed if left out.
    pub fn from_json(text: &str) -> Result<Self, QuotaError> {
        let file: File = serde_json::from_str(text)?;
        if file.version != 1 {
            return Err(QuotaError::Version(file.version));
        }
        let namespaces = file.namespaces.into_iter().map(|(name, entry)| (name, entry.into()));
        Ok(Self { namespaces: namespaces.collect() })
    }

    /// Both together. Where both name a namespace, `over` counts.
    #[must_use]
    pub fn under(mut self, over: Self) -> Self {
        self.namespaces.extend(over.namespaces);
        self
    }

    /// What every namespace with a quota may hold, holds, and may still take.
    pub(crate) fn allowances(&self, spending: &Spending) -> BTreeMap<String, Allowance> {
        let names = self.namespaces.keys();
        names.map(|name| (name.clone(), self.allowance(name, spending))).collect()
    }

    /// The same for one namespace; without a quota it has no limits.
    pub(crate) fn allowance(&self, namespace: &str, spending: &Spending) -> Allowance {
        let Some(limits) = self.namespaces.get(namespace) else { return Allowance::default() };
        let used = |model: &ModelPattern| {
            let held = spending.get(namespace).into_iter().flatten();
            let counted = held.filter(|(card, _)| model.matches(card));
            counted.fold(Amount::default(), |sum, (_, total)| sum.plus(&total.amount()))
        };
        let rules = limits.caps.iter().map(|(model, cap)| Rule {
            model: model.clone(),
            cap: *cap,
            used: used(model),
        });
        Allowance { rules: rules.collect(), unlisted: limits.unlisted, pools: limits.pools.clone() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    namespaces: BTreeMap<String, FileEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    #[serde(default)]
    models: BTreeMap<String, FileCap>,
    #[serde(default)]
    others: Others,
    #[serde(default)]
    pools: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileCap {
    cards: Option<u64>,
    cores: Option<Cores>,
    #[serde(rename = "memoryMiB")]
    memory: Option<Mebibytes>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum Others {
    #[default]
    Allowed,
    Refused,
}

impl From<FileEntry> for Limits {
    fn from(entry: FileEntry) -> Self {
        let cap = |cap: FileCap| Cap { cards: cap.cards, cores: cap.cores, memory: cap.memory };
        let models = entry.models.into_iter();
        Self {
            caps: models.map(|(model, limit)| (ModelPattern::new(&model), cap(limit))).collect(),
            unlisted: match entry.others {
                Others::Allowed => Unlisted::Allowed,
                Others::Refused => Unlisted::Refused,
            },
            pools: entry.pools,
        }
    }
}
