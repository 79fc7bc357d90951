//! Rungs: the ways to keep a container within its share. One module each; others join here.

mod limiter;
mod none;

use std::fmt;
use std::str::FromStr;

use gpu::DriverFile;
use kubelet::cdi::{ContainerEdits, Mount};
use model::Grant;

use crate::refusal::Refusal;
use crate::settings::Folder;
pub(crate) use limiter::{LIBRARY, PRELOAD, PRELOADED};

/// A way to enforce a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// Nothing is enforced.
    None,
    /// Our library stands in for the driver's inside the container.
    Limiter,
}

/// Not the name of a rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("isolation is none or limiter")]
pub struct NoSuchRung;

impl FromStr for Rung {
    type Err = NoSuchRung;

    fn from_str(text: &str) -> Result<Self, NoSuchRung> {
        match text {
            "none" => Ok(Self::None),
            "limiter" => Ok(Self::Limiter),
            _ => Err(NoSuchRung),
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Limiter => "limiter",
        })
    }
}

/// What a rung works with.
#[derive(Debug)]
pub struct Given<'a> {
    /// The driver's libraries.
    pub driver: &'a [DriverFile],
    /// Where the driver is.
    pub driver_root: &'a Folder,
    /// Our library.
    pub limiter: &'a Folder,
    /// The container's pages, as the host sees them.
    pub pages: &'a str,
    /// What the container gets.
    pub grants: &'a [Grant],
}

impl Rung {
    /// The rung for a container: whole cards are left alone, there is nobody to protect.
    #[must_use]
    pub fn for_grants(self, grants: &[Grant]) -> Self {
        let whole = grants.iter().all(|grant| grant.portion == model::Portion::Whole);
        if whole { Self::None } else { self }
    }

    /// Every place in a container that this rung or a lesser one may fill, for so many cards at most,
    /// and whether it is read-only there.
    pub fn places(self, driver: &[DriverFile], cards: usize) -> Vec<(String, bool)> {
        let found = driver.iter().flat_map(|file| found_as("", &file.name));
        let mut places: Vec<_> = found.map(|mount| (mount.container_path, true)).collect();
        if self == Self::Limiter {
            places.extend(limiter::places(cards));
        }
        places
    }

    /// Adds the driver's files, and what keeps the container within its share.
    pub fn equip(self, given: &Given<'_>, edits: &mut ContainerEdits) -> Result<(), Refusal> {
        match self {
            Self::None => none::equip(given, edits),
            Self::Limiter => limiter::equip(given, edits),
        }
    }
}

/// The folders that loaders of all distributions search without a cache: Debian and Ubuntu the
/// first, RHEL and its family the second. A file is put into both; in the wrong one nobody looks.
#[cfg(target_arch = "aarch64")]
const SEARCHED: [&str; 2] = ["/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
#[cfg(not(target_arch = "aarch64"))]
const SEARCHED: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

/// Puts a library where any loader finds it by `name`.
fn found_as(host: &str, name: &str) -> impl Iterator<Item = Mount> {
    SEARCHED.map(|folder| Mount::read_only(host, format!("{folder}/{name}"))).into_iter()
}

fn text(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}
