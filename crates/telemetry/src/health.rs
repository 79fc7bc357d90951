//! Whether the service works: alive, and ready for traffic.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What must be so before the service is ready. Each part says of itself whether it is.
#[derive(Debug, Default)]
pub struct Health {
    // Few parts, set seldom, never held over an await.
    parts: Mutex<BTreeMap<&'static str, bool>>,
}

impl Health {
    /// Ready once all `parts` say so.
    pub fn waiting_for(parts: &[&'static str]) -> Self {
        Self { parts: Mutex::new(parts.iter().map(|part| (*part, false)).collect()) }
    }

    /// Says that `part` is ready.
    pub fn ready(&self, part: &'static str) {
        self.set(part, true);
    }

    /// Says that `part` is not, or no longer.
    pub fn unready(&self, part: &'static str) {
        self.set(part, false);
    }

    /// Whether all parts are ready, or which are not.
    pub fn check(&self) -> Result<(), NotReady> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let missing: Vec<_> =
            parts.iter().filter(|(_, ready)| !**ready).map(|(part, _)| *part).collect();
        if missing.is_empty() { Ok(()) } else { Err(NotReady { missing }) }
    }

    fn set(&self, part: &'static str, ready: bool) {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).insert(part, ready);
    }
}

/// What is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// The parts, by name.
    pub missing: Vec<&'static str>,
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not ready: waiting for {}", self.missing.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_when_every_part_is() {
        let health = Health::waiting_for(&["pods", "nodes"]);
        health.ready("pods");
        assert_eq!(health.check().unwrap_err().to_string(), "not ready: waiting for nodes");
        health.ready("nodes");
        assert_eq!(health.check(), Ok(()));
        health.unready("pods");
        assert!(health.check().is_err());
    }
}
