//! Two clocks: one that never goes back, for decisions, and the wall's, for annotations.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use model::{Moment, UnixNanos};

/// The clock of this process.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// Milliseconds since it started. Setting the machine's clock does not change it.
    pub fn now(&self) -> Moment {
        Moment(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// The time on the wall, for texts that others read. Never used to decide anything of ours.
    pub fn wall(&self) -> UnixNanos {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        UnixNanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
