//! Whether kube-scheduler came back and stays. Pure: what is seen and when come from outside.

use std::time::Duration;

use crate::journal::Digest;

/// What one look at kube-scheduler's health saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It says that it is well, with this certificate.
    Well(Option<Digest>),
    /// It answers, but is not well.
    Ill(String),
    /// It does not answer.
    Nothing(String),
}

/// What all looks together tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Not yet.
    Waiting(String),
    /// It was started anew and has been well for long enough.
    Settled,
}

/// The looks so far.
#[derive(Debug, Clone)]
pub struct Watch {
    /// The certificate of the kube-scheduler that must go; none if it may stay.
    old: Option<Digest>,
    steady: Duration,
    restarted: bool,
    well_since: Option<(Duration, Option<Digest>)>,
}

impl Watch {
    /// Waits for one that is not `old`, and well for as long as `steady`.
    pub fn new(old: Option<Digest>, steady: Duration) -> Self {
        Self { restarted: old.is_none(), old, steady, well_since: None }
    }

    /// Takes in what was seen at `at`.
    pub fn see(&mut self, at: Duration, seen: Seen) -> Verdict {
        let certificate = match seen {
            Seen::Well(certificate) => certificate,
            Seen::Ill(said) => {
                self.well_since = None;
                return Verdict::Waiting(format!("kube-scheduler is not well: {said}"));
            }
            Seen::Nothing(why) => {
                // With a certificate from a file this is all that tells a new one from the old.
                self.restarted = true;
                self.well_since = None;
                return Verdict::Waiting(format!("kube-scheduler does not answer: {why}"));
            }
        };
        if certificate.is_some() && certificate != self.old {
            self.restarted = true;
        }
        if !self.restarted {
            return Verdict::Waiting(
                "kube-scheduler was not started anew: the kubelet does not run what lies in this folder, or not yet"
                    .to_owned(),
            );
        }
        match &self.well_since {
            // Another certificate is another start: it ended in between.
            Some((since, same)) if *same == certificate => {
                if at.saturating_sub(*since) >= self.steady {
                    Verdict::Settled
                } else {
                    Verdict::Waiting("kube-scheduler is well, but for a moment only".to_owned())
                }
            }
            _ => {
                self.well_since = Some((at, certificate));
                if self.steady.is_zero() {
                    return Verdict::Settled;
                }
                Verdict::Waiting("kube-scheduler is well, but for a moment only".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn well(certificate: &str) -> Seen {
        Seen::Well(Some(Digest::of(certificate.as_bytes())))
    }

    fn waits(verdict: &Verdict, because: &str) {
        assert!(matches!(verdict, Verdict::Waiting(why) if why.contains(because)), "{verdict:?}");
    }

    #[test]
    fn the_old_one_does_not_count() {
        let mut watch = Watch::new(Some(Digest::of(b"old")), seconds(5));
        for at in 0..60 {
            waits(&watch.see(seconds(at), well("old")), "not started anew");
        }
        waits(&watch.see(seconds(60), well("new")), "for a moment only");
        assert_eq!(watch.see(seconds(65), well("new")), Verdict::Settled);
    }

    #[test]
    fn one_that_starts_over_and_over_never_settles() {
        let mut watch = Watch::new(Some(Digest::of(b"old")), seconds(5));
        for at in 0..60 {
            let seen = match at % 4 {
                0 => Seen::Nothing("refused".into()),
                _ => well(&format!("start {}", at / 4)),
            };
            assert!(matches!(watch.see(seconds(at), seen), Verdict::Waiting(_)), "{at}");
        }
    }

    #[test]
    fn with_a_certificate_of_its_own_it_must_have_been_gone() {
        let mut watch = Watch::new(Some(Digest::of(b"file")), seconds(2));
        waits(&watch.see(seconds(0), well("file")), "not started anew");
        waits(&watch.see(seconds(1), Seen::Nothing("refused".into())), "does not answer");
        waits(&watch.see(seconds(2), well("file")), "for a moment only");
        assert_eq!(watch.see(seconds(4), well("file")), Verdict::Settled);
    }

    #[test]
    fn where_nothing_changed_it_may_be_the_same() {
        let mut watch = Watch::new(None, Duration::ZERO);
        waits(&watch.see(seconds(0), Seen::Ill("503".into())), "not well: 503");
        assert_eq!(watch.see(seconds(1), well("any")), Verdict::Settled);
    }
}
