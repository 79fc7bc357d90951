//! The two forms of quota, each with its last good text.

use kubeapi::QuotaSource;
use ledger::{Quota, QuotaError};

/// What is in force.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    gpu_admission: Option<Quota>,
    ours: Option<Quota>,
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
    pub(super) fn change(&mut self, source: QuotaSource, text: Option<&str>) -> Change {
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
    }
}
