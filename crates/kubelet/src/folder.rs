//! Noticing that files of a folder came, went or were replaced.
//!
//! inotify tells within microseconds, but not always: its queue can overflow, a folder that is
//! removed and made anew takes its watch with it, some file systems tell nothing, and a node can be
//! out of watches. So a slow poll stands beside it, and a caller looks at the files themselves
//! whenever it is woken, for whatever reason.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tracing::warn;

/// A folder of which some names matter.
pub(crate) struct Folder {
    path: PathBuf,
    names: Arc<[OsString]>,
    poll: Duration,
    wake: Arc<Notify>,
    watcher: Option<(RecommendedWatcher, FolderId)>,
    warned: bool,
}

/// Device and inode: the watch belongs to the folder, not to its path.
type FolderId = (u64, u64);

/// Why it is time to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The folder told of something.
    Event,
    /// It was silent for as long as a poll.
    Nothing,
}

impl Folder {
    pub(crate) fn watch(path: &Path, names: &[&str], poll: Duration) -> Self {
        let names = names.iter().map(OsString::from).collect();
        let wake = Arc::new(Notify::new());
        let mut folder =
            Self { path: path.to_owned(), names, poll, wake, watcher: None, warned: false };
        folder.renew();
        folder
    }

    /// Returns when something may have happened to one of the names.
    ///
    /// Nothing is lost between two calls. Safe to drop half-way.
    pub(crate) async fn changed(&mut self) -> Heard {
        // The poll is what brings the watch of a folder that was made anew.
        self.renew();
        match tokio::time::timeout(self.poll, self.wake.notified()).await {
            Ok(()) => Heard::Event,
            Err(_) => Heard::Nothing,
        }
    }

    /// Watches the folder that is at the path now.
    fn renew(&mut self) {
        let now = folder_id(&self.path);
        if now.is_some() && self.watcher.as_ref().map(|(_, id)| *id) == now {
            return;
        }
        self.watcher = None;
        let Some(id) = now else { return };
        match self.make() {
            Ok(watcher) => {
                self.watcher = Some((watcher, id));
                self.warned = false;
                // What happened before the watch began would never be told.
                self.wake.notify_one();
            }
            Err(error) if !self.warned => {
                self.warned = true;
                let poll = self.poll.as_secs();
                warn!(folder = %self.path.display(), %error, poll, "folder is polled only");
            }
            Err(_) => {}
        }
    }

    fn make(&self) -> notify::Result<RecommendedWatcher> {
        let (wake, names, path) = (self.wake.clone(), self.names.clone(), self.path.clone());
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            let matters = match event {
                // The kubelet's checkpoint lies in the same folder and changes with every pod.
                Ok(event) => {
                    event.need_rescan()
                        || (!event.kind.is_access()
                            && event.paths.iter().any(|at| {
                                at == &path
                                    || at.file_name().is_some_and(|name| {
                                        names.iter().any(|one| one.as_os_str() == name)
                                    })
                            }))
                }
                Err(_) => true,
            };
            if matters {
                wake.notify_one();
            }
        })?;
        watcher.watch(&self.path, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    }
}

fn folder_id(path: &Path) -> Option<FolderId> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = path.metadata().ok()?;
    Some((meta.dev(), meta.ino()))
}
