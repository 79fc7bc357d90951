//! What the API server is told of the node's cards: the inventory, and amounts.
//!
//! A task of its own: an API server that does not answer holds up no look at the cards, and no list
//! of the kubelet's.

use std::sync::Arc;
use std::time::Duration;

use dialect::measured as amounts;
use kubeapi::OwnNode;
use model::codec::encode_inventory;
use model::{Inventory, names};
use telemetry::Stopping;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::settings::Settings;
use crate::starting::chain;

/// An annotation is written at most this often.
const SHORTEST: Duration = Duration::from_secs(1);
/// And while a card or the driver comes and goes all the time, no seldomer than this.
const LONGEST: Duration = Duration::from_secs(30);
/// When what failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What publishing works with.
pub(crate) struct Publisher {
    pub(crate) settings: Arc<Settings>,
    pub(crate) node: OwnNode,
    /// The annotation as it is, if there is one.
    pub(crate) published: Option<String>,
    pub(crate) inventory: watch::Receiver<Arc<Inventory>>,
    /// Whether the cards were seen: before, there is nothing to say.
    pub(crate) looked: watch::Receiver<bool>,
    /// Counts how often the kubelet took a plugin in: it forgets amounts when it restarts.
    pub(crate) registrations: watch::Receiver<u64>,
}

/// Something was not written.
struct Failed;

impl Publisher {
    /// Publishes every change until it is asked to stop.
    pub(crate) async fn run(mut self, mut stopping: Stopping) {
        if self.looked.wait_for(|looked| *looked).await.is_err() {
            return;
        }
        let (mut pace, mut offered) = (Pace::default(), None);
        loop {
            let wait = match self.publish(&mut pace).await {
                Ok(wait) => wait,
                Err(Failed) => Some(AGAIN),
            };
            let wait = match self.offer(&mut offered).await {
                Ok(()) => wait,
                Err(Failed) => Some(AGAIN),
            };
            let again = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stopping.asked() => return,
                () = again => {}
                Ok(()) = self.inventory.changed(), if wait.is_none() => {}
                Ok(()) = self.registrations.changed() => {}
            }
        }
    }

    /// Writes the inventory if it changed, or says how long to wait before that.
    async fn publish(&mut self, pace: &mut Pace) -> Result<Option<Duration>, Failed> {
        let inventory = self.inventory.borrow_and_update().clone();
        // A node that has never had a card is left alone.
        if inventory.devices.is_empty() && self.published.is_none() {
            return Ok(None);
        }
        let text = encode_inventory(&inventory);
        if self.published.as_ref() == Some(&text) {
            return Ok(None);
        }
        let wait = pace.wait(Instant::now());
        if !wait.is_zero() {
            return Ok(Some(wait));
        }
        pace.wrote(Instant::now());
        match self.node.annotate(names::INVENTORY, &text).await {
            Ok(()) => {
                self.published = Some(text);
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "inventory not published yet");
                Err(Failed)
            }
        }
    }

    /// Amounts for people and the original tools, when they change or the kubelet started anew.
    async fn offer(
        &mut self,
        offered: &mut Option<(u64, Vec<(&'static str, u64)>)>,
    ) -> Result<(), Failed> {
        let amounts = amounts(&self.settings.dialects, &self.inventory.borrow().clone());
        let now = (*self.registrations.borrow_and_update(), amounts);
        if now.1.is_empty() || offered.as_ref() == Some(&now) {
            return Ok(());
        }
        match self.node.offer(&now.1).await {
            Ok(()) => {
                *offered = Some(now);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "amounts not written yet");
                Err(Failed)
            }
        }
    }
}

/// How often may be written: the first change at once, and the more seldom the more there are.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    gap: Duration,
}

impl Pace {
    /// How long to wait before the next write.
    fn wait(&self, now: Instant) -> Duration {
        self.last.map_or(Duration::ZERO, |last| (last + self.gap).saturating_duration_since(now))
    }

    fn wrote(&mut self, now: Instant) {
        // Quiet for long enough, it begins anew.
        let soon = self.last.is_some_and(|last| now - last < self.gap * 10);
        self.gap = if soon { (self.gap * 2).min(LONGEST) } else { SHORTEST };
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_changes_all_the_time_is_written_ever_more_seldom() {
        let mut pace = Pace::default();
        let begin = Instant::now();
        let (mut now, mut gaps) = (begin, Vec::new());
        for _ in 0..8 {
            let wait = pace.wait(now);
            gaps.push(wait.as_secs());
            now += wait;
            pace.wrote(now);
        }
        assert_eq!(gaps, [0, 1, 2, 4, 8, 16, 30, 30]);
        now += LONGEST * 10;
        pace.wrote(now);
        assert_eq!(pace.wait(now), SHORTEST, "after a quiet time it begins anew");
    }
}
