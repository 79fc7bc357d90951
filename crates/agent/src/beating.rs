//! The heartbeat: the node's Lease with the load of its cards, and what people say of them, which is
//! read at the same pace. A task of its own, as a slow API server holds up no look at the cards.

use std::collections::BTreeSet;
use std::sync::Arc;

use kubeapi::OwnNode;
use ledger::Measured;
use model::{DeviceId, Inventory, names};
use telemetry::Stopping;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::probing::Prober;
use crate::settings::Settings;
use crate::starting::chain;

/// What people say about the node's cards. What cannot be read stays as it was: an API server that
/// is down puts no card back into service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// The node's annotation.
    pub(crate) cordon: String,
    /// What gpushare's `ConfigMap` lists.
    pub(crate) listed: String,
}

impl Said {
    /// The devices that are out of service.
    pub(crate) fn out(&self, inventory: &Inventory) -> BTreeSet<DeviceId> {
        let mut out = named(&self.cordon, inventory);
        out.extend(named(&self.listed, inventory));
        out
    }
}

/// What the Lease carries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// The load of each device.
    pub(crate) devices: Vec<(DeviceId, Measured)>,
    /// Whether the processes on them cannot be seen.
    pub(crate) blind: bool,
}

/// What a beat works with.
pub(crate) struct Heart {
    pub(crate) settings: Arc<Settings>,
    pub(crate) node: OwnNode,
    pub(crate) load: watch::Receiver<Load>,
    pub(crate) said: watch::Sender<Said>,
    pub(crate) prober: Arc<Prober>,
}

impl Heart {
    /// Beats until it is asked to stop.
    pub(crate) async fn run(self, mut stopping: Stopping) {
        let mut beats = interval(self.settings.beat);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.asked() => return,
                _ = beats.tick() => {}
            }
            let load = self.load.borrow().clone();
            let beat = self.settings.beat;
            let lacks: &[&str] = if load.blind { &[names::PROCESSES] } else { &[] };
            let way = self.prober.way().to_string();
            let space = &self.settings.namespace;
            let renewed = self.node.beat(space, beat, &load.devices, lacks, &way);
            if let Err(error) = renewed.await {
                tracing::warn!(error = chain(&error), "lease not renewed");
            }
            let before = self.said.borrow().clone();
            let annotations = match self.node.annotations().await {
                Ok(annotations) => Some(annotations),
                Err(error) => {
                    tracing::debug!(error = chain(&error), "cordon not read");
                    None
                }
            };
            let cordon = annotations.map(|mut all| all.remove(names::CORDON).unwrap_or_default());
            let listed = listed(&self.node, &self.settings).await;
            let now = Said {
                cordon: cordon.unwrap_or(before.cordon),
                listed: listed.unwrap_or(before.listed),
            };
            self.said.send_if_modified(|said| {
                let changed = *said != now;
                *said = now;
                changed
            });
        }
    }
}

/// What gpushare's people say of this node's cards; nothing if it cannot be read.
pub(crate) async fn listed(node: &OwnNode, settings: &Settings) -> Option<String> {
    if !settings.dialects.enabled.contains(&dialect::Dialect::Gpushare) {
        return Some(String::new());
    }
    let (namespace, name, key) = dialect::unhealthy(&settings.node);
    match node.configured(namespace, &name, key).await {
        Ok(text) => Some(text.unwrap_or_default()),
        Err(error) => {
            tracing::debug!(error = chain(&error), "list of unhealthy cards not read");
            None
        }
    }
}

/// The devices a person names: UUIDs or places in the driver's order, in a list with commas.
fn named(text: &str, inventory: &Inventory) -> BTreeSet<DeviceId> {
    let words: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let named = |device: &&Arc<model::Device>| {
        words.iter().any(|word| *word == device.id.as_str() || *word == device.index.to_string())
    };
    inventory.devices.iter().filter(named).map(|device| device.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use model::Profile;

    use super::*;

    #[test]
    fn people_name_cards_by_uuid_or_place() {
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        let id = |n: u32| DeviceId::parse(&format!("GPU-{n}")).unwrap();
        assert_eq!(named("GPU-1, 3,", &inventory), [id(1), id(3)].into());
        assert_eq!(named("", &inventory), BTreeSet::new());
        assert_eq!(named("7,GPU-x", &inventory), BTreeSet::new());
        let said = Said { cordon: "0".into(), listed: "GPU-2".into() };
        assert_eq!(said.out(&inventory), [id(0), id(2)].into());
    }
}
