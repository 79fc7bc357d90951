//! How the cards of known machines are wired, worked out once for all nodes like them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use model::{Inventory, Profile, Topology, profiles};

/// The cards and the wiring of one machine.
type Wired = (Arc<Inventory>, Arc<Topology>);

/// What a machine of this name has.
pub fn like(machine: &str) -> Result<Wired> {
    static KNOWN: Mutex<BTreeMap<String, Wired>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(wired) = known.get(machine) {
        return Ok(wired.clone());
    }
    let all = || profiles::names().collect::<Vec<_>>().join(", ");
    let profile = Profile::named(machine).with_context(|| format!("machines are {}", all()))?;
    let inventory = profile.inventory("GPU")?;
    let topology = Topology::new(&inventory.devices, &inventory.links);
    let wired: Wired = (Arc::new(inventory), Arc::new(topology));
    known.insert(machine.to_owned(), wired.clone());
    Ok(wired)
}
