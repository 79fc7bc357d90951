//! The two forms of quota, each with its last good text.

use std::collections::BTreeMap;
use std::fmt;

use kubeapi::{QuotaSource, Source};
use ledger::{Quota, QuotaError};

/// What is in force.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    gpu_admission: Option<Quota>,
    ours: Option<Quota>,
    states: BTreeMap<&'static str, QuotaState>,
}

/// How it stands with one of the texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotaState {
    /// There is none, and never was.
    Absent,
    /// What it says is in force.
    InForce,
    /// It cannot be read, and why.
    Broken(String),
    /// It was there and is gone.
    Missing,
}

impl QuotaState {
    /// Whether an earlier text is in force, or none although there is one.
    pub fn keeps_the_last(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Missing)
    }
}

impl fmt::Display for QuotaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("absent"),
            Self::InForce => f.write_str("in force"),
            Self::Broken(why) => write!(f, "broken, the last good one is in force: {why}"),
            Self::Missing => f.write_str("missing, the last good one is in force"),
        }
    }
}

/// What became of a text.
#[derive(Debug)]
pub(super) enum Change {
    /// This is in force now.
    Now(Quota),
    /// It cannot be read: what was in force stays so.
    Broken(QuotaError),
    /// It is not there: what was in force stays so.
    Missing,
    /// There is none, and never was.
    None,
}

impl Quotas {
    /// How it stands with each text that was looked for.
    pub(super) fn states(&self) -> &BTreeMap<&'static str, QuotaState> {
        &self.states
    }

    pub(super) fn change(&mut self, source: QuotaSource, text: Option<&str>) -> Change {
        let change = self.take(source, text);
        let state = match &change {
            Change::Now(_) => QuotaState::InForce,
            Change::Broken(error) => {
                let cause = std::error::Error::source(error);
                QuotaState::Broken(
                    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")),
                )
            }
            Change::Missing => QuotaState::Missing,
            Change::None => QuotaState::Absent,
        };
        self.states.insert(Source::Quota(source).as_str(), state);
        change
    }

    fn take(&mut self, source: QuotaSource, text: Option<&str>) -> Change {
        let slot = match source {
            QuotaSource::GpuAdmission => &mut self.gpu_admission,
            QuotaSource::Ours => &mut self.ours,
        };
        let Some(text) = text else {
            return if slot.is_some() { Change::Missing } else { Change::None };
        };
        let read = match source {
            QuotaSource::GpuAdmission => Quota::from_gpu_admission(text),
            QuotaSource::Ours => Quota::from_json(text),
        };
        match read {
            Ok(quota) => *slot = Some(quota),
            Err(error) => return Change::Broken(error),
        }
        let below = self.gpu_admission.clone().unwrap_or_default();
        Change::Now(below.under(self.ours.clone().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_or_missing_text_keeps_the_last_good_one() {
        let good = r#"{"team":{"quota":{"T4":1}}}"#;
        let mut quotas = Quotas::default();
        let mut change = |text| quotas.change(QuotaSource::GpuAdmission, text);
        assert!(matches!(change(None), Change::None));
        let Change::Now(first) = change(Some(good)) else { panic!() };
        assert!(matches!(change(Some("{")), Change::Broken(_)));
        assert!(matches!(change(None), Change::Missing));
        let Change::Now(again) = change(Some(good)) else { panic!() };
        assert_eq!(first, again);
        let state = |text| {
            let mut quotas = Quotas::default();
            quotas.change(QuotaSource::Ours, Some(r#"{"version":1,"namespaces":{}}"#));
            quotas.change(QuotaSource::Ours, text);
            quotas.states()["quota"].to_string()
        };
        assert_eq!(state(None), "missing, the last good one is in force");
        assert!(
            state(Some("{")).starts_with("broken, the last good one is in force: quota is not")
        );
        assert_eq!(state(Some(r#"{"version":1,"namespaces":{}}"#)), "in force");
    }
}
