//! Memory limits of control groups, which drivers from 615 on keep themselves.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::machine::Machine;
use crate::process::JoinError;
use crate::state::{LIMITS, Limit, State, at, get, wide};

/// What a control group may take of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// So much is certain.
    pub soft: u64,
    /// More is refused.
    pub hard: u64,
    /// So much is in use.
    pub used: u64,
}

/// Why a limit is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// No such folder.
    #[error("the control group cannot be opened")]
    NoGroup,
    /// Too many.
    #[error("there are as many limits as can be kept")]
    Full,
    /// The process cannot join the machine.
    #[error(transparent)]
    Join(#[from] JoinError),
}

pub(crate) fn find(state: &State, card: usize, group: u64) -> Option<&Limit> {
    let is = |limit: &&Limit| get(&limit.card) == wide(card + 1) && get(&limit.group) == group;
    let used = at(&state.header.limits_used).min(LIMITS);
    state.limits[..used].iter().find(is)
}

/// The number of a control group's folder.
fn group_of(path: &Path) -> Result<u64, LimitError> {
    std::fs::metadata(path).map(|folder| folder.ino()).map_err(|_| LimitError::NoGroup)
}

impl Machine {
    /// Limits what the processes of a control group may take of a card; a `hard` of
    /// [`u64::MAX`] takes the limit away. Processes that are above it keep what they have.
    pub fn set_memory_limit(
        &'static self,
        card: usize,
        group: &Path,
        soft: u64,
        hard: u64,
    ) -> Result<(), LimitError> {
        let group = group_of(group)?;
        self.change(|change| {
            let old = find(self.state, card, group);
            if hard == u64::MAX && soft == 0 {
                if let Some(limit) = old {
                    change.set(&limit.card, 0);
                }
                return Ok(());
            }
            let free = || self.state.limits.iter().find(|limit| get(&limit.card) == 0);
            let limit = old.or_else(free).ok_or(LimitError::Full)?;
            let place = self.state.limits.iter().position(|it| std::ptr::eq(it, limit));
            let used = &self.state.header.limits_used;
            change.set(used, get(used).max(place.map_or(0, |place| wide(place + 1))));
            change.set(&limit.card, wide(card + 1));
            change.set(&limit.group, group);
            change.set(&limit.soft, soft);
            change.set(&limit.hard, hard);
            Ok(())
        })?
    }

    /// The limit of a control group on a card, if one is set.
    pub fn memory_limit(
        &'static self,
        card: usize,
        group: &Path,
    ) -> Result<Option<MemoryLimit>, LimitError> {
        let group = group_of(group)?;
        Ok(self.change(|_| {
            let limit = find(self.state, card, group)?;
            let used = self.used_by_group(card, group);
            Some(MemoryLimit { soft: get(&limit.soft), hard: get(&limit.hard), used })
        })?)
    }
}
