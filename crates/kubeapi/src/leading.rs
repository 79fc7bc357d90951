//! One replica leads. It holds a Lease, and stops by its own clock before another may take it.
//!
//! Written by hand: what we need beyond an election is a promise in our own time. A [`Term`] says
//! until when no other replica can lead, counted on this process's clock from before the last
//! renewal was sent; whoever binds a pod checks it first. And the Lease carries the address to
//! which a replica that does not lead hands on what only the leader may do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::{Client, Error};

/// Annotation of the Lease: where the leader is reached.
const ADDRESS: &str = "nano-gpu/leader-address";

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// We do, at least until then.
    Ours {
        /// When another may begin to lead.
        until: Instant,
        /// Grows whenever leading begins anew.
        number: u64,
    },
    /// Another does, or nobody; this is where it was last heard of.
    Others {
        /// Its address, if it gave one.
        address: Option<String>,
    },
}

/// Whether this replica leads.
pub trait Leadership: Send + Sync + 'static {
    /// Who leads now.
    fn term(&self) -> Term;

    /// The number of our term, if no other replica can lead for at least `margin` longer.
    fn leads_for(&self, margin: Duration) -> Option<u64> {
        match self.term() {
            Term::Ours { until, number } if Instant::now() + margin < until => Some(number),
            Term::Ours { .. } | Term::Others { .. } => None,
        }
    }
}

/// How an election goes.
#[derive(Debug, Clone)]
pub struct Election {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// Who we are: different for every start of every replica.
    pub identity: String,
    /// Where we are reached.
    pub address: Option<String>,
    /// How long a leader that falls silent keeps the Lease.
    pub duration: Duration,
    /// How often the leader renews.
    pub renew: Duration,
}

/// The outcome of an election, kept up to date.
#[derive(Debug, Clone)]
pub struct Elected {
    term: Arc<Mutex<Term>>,
}

impl Leadership for Elected {
    fn term(&self) -> Term {
        self.term.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Always leads: for a single replica, and for tests.
#[derive(Debug, Clone, Copy)]
pub struct Alone;

impl Leadership for Alone {
    fn term(&self) -> Term {
        Term::Ours { until: Instant::now() + Duration::from_hours(1), number: 1 }
    }
}

/// What is known of the Lease: when we last saw it change, on our own clock.
#[derive(Debug, Default)]
struct Watched {
    version: Option<String>,
    since: Option<Instant>,
}

impl Watched {
    /// Whether its holder has been silent for `duration` of our own time.
    fn is_silent(&mut self, version: Option<&String>, now: Instant, duration: Duration) -> bool {
        if self.version.as_ref() != version || self.since.is_none() {
            self.version = version.cloned();
            self.since = Some(now);
            return false;
        }
        self.since.is_some_and(|since| now.duration_since(since) > duration)
    }
}

impl Election {
    /// Takes part until `stop` returns; then gives the Lease back, if we hold it.
    pub fn run<F>(self, client: Client, stop: F) -> (Elected, impl Future<Output = ()>)
    where
        F: Future<Output = ()> + Send,
    {
        let term = Arc::new(Mutex::new(Term::Others { address: None }));
        let elected = Elected { term: term.clone() };
        let leases: Api<Lease> = Api::namespaced(client, &self.namespace);
        let run = async move {
            let mut stop = std::pin::pin!(stop);
            let mut watched = Watched::default();
            let mut number = 0;
            loop {
                let before = Instant::now();
                let patience = self.renew.max(Duration::from_millis(500)) * 2;
                let tried = tokio::time::timeout(patience, self.try_once(&leases, &mut watched));
                let now = match tried.await {
                    Ok(Ok(held)) => Some(held),
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "lease not renewed");
                        None
                    }
                    Err(_) => {
                        tracing::warn!("lease not renewed: the API server did not answer");
                        None
                    }
                };
                {
                    let mut term = term.lock().unwrap_or_else(PoisonError::into_inner);
                    let led = matches!(&*term, Term::Ours { .. });
                    match now {
                        Some(Held::Ours) => {
                            if !led {
                                number += 1;
                            }
                            *term = Term::Ours { until: before + self.duration, number };
                        }
                        Some(Held::Others(address)) => *term = Term::Others { address },
                        None => {
                            // Still ours until its time is over: nobody else can have it before.
                            let over = |until: &Instant| *until <= Instant::now();
                            if matches!(&*term, Term::Ours { until, .. } if over(until)) {
                                *term = Term::Others { address: None };
                            }
                        }
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(self.renew) => {}
                    () = &mut stop => break,
                }
            }
            let led = {
                let mut term = term.lock().unwrap_or_else(PoisonError::into_inner);
                matches!(
                    std::mem::replace(&mut *term, Term::Others { address: None }),
                    Term::Ours { .. }
                )
            };
            if led {
                self.give_back(&leases).await;
            }
        };
        (elected, run)
    }

    async fn try_once(&self, leases: &Api<Lease>, watched: &mut Watched) -> Result<Held, Error> {
        let Some(mut lease) = leases.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                ..Lease::default()
            };
            let lease = self.claimed(lease, 0);
            return match leases.create(&PostParams::default(), &lease).await {
                Ok(_) => Ok(Held::Ours),
                Err(Error::Api(status)) if status.code == 409 => Ok(Held::Others(None)),
                Err(error) => Err(error),
            };
        };
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty());
        let ours = holder == Some(self.identity.as_str());
        let vacant = holder.is_none();
        let changes = spec.lease_transitions.unwrap_or(0);
        let asked = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
        let duration = self.duration.max(Duration::from_secs(asked.unwrap_or(0)));
        let version = lease.metadata.resource_version.clone();
        let silent = watched.is_silent(version.as_ref(), Instant::now(), duration);
        if !ours && !vacant && !silent {
            let annotations = lease.metadata.annotations.as_ref();
            return Ok(Held::Others(annotations.and_then(|all| all.get(ADDRESS)).cloned()));
        }
        let changes = if ours { changes } else { changes.saturating_add(1) };
        let lease = self.claimed(lease, changes);
        // Replaced with its version as the precondition: of two who try, one succeeds.
        match leases.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(_) => Ok(Held::Ours),
            Err(Error::Api(status)) if status.code == 409 => Ok(Held::Others(None)),
            Err(error) => Err(error),
        }
    }

    fn claimed(&self, mut lease: Lease, changes: i32) -> Lease {
        let now = MicroTime(jiff::Timestamp::now());
        let renewing = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref())
            == Some(&self.identity);
        let acquired = lease.spec.as_ref().and_then(|spec| spec.acquire_time.clone());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs().max(1)).ok(),
            acquire_time: if renewing { acquired } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(changes),
            ..lease.spec.unwrap_or_default()
        });
        let annotations = lease.metadata.annotations.get_or_insert_default();
        match &self.address {
            Some(address) => drop(annotations.insert(ADDRESS.to_owned(), address.clone())),
            None => drop(annotations.remove(ADDRESS)),
        }
        lease
    }

    /// So that another need not wait for our silence.
    async fn give_back(&self, leases: &Api<Lease>) {
        let Ok(mut lease) = leases.get(&self.name).await else { return };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
            spec.holder_identity = None;
            let _ = leases.replace(&self.name, &PostParams::default(), &lease).await;
        }
    }
}

enum Held {
    Ours,
    Others(Option<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_counted_on_our_own_clock_from_the_last_change() {
        let start = Instant::now();
        let (one, two) = ("1".to_owned(), "2".to_owned());
        let second = Duration::from_secs(1);
        let mut watched = Watched::default();
        assert!(!watched.is_silent(Some(&one), start, second), "seen for the first time");
        assert!(!watched.is_silent(Some(&one), start + second, second));
        assert!(watched.is_silent(Some(&one), start + second * 2, second));
        assert!(!watched.is_silent(Some(&two), start + second * 3, second), "renewed");
        assert!(!watched.is_silent(Some(&two), start + second * 4, second));
    }

    #[test]
    fn a_term_is_not_ours_near_its_end() {
        struct Ending(Instant);
        impl Leadership for Ending {
            fn term(&self) -> Term {
                Term::Ours { until: self.0, number: 3 }
            }
        }
        let soon = Ending(Instant::now() + Duration::from_secs(5));
        assert_eq!(soon.leads_for(Duration::from_secs(1)), Some(3));
        assert_eq!(soon.leads_for(Duration::from_secs(10)), None);
    }
}
