//! Points at which a test can end the process, as a crash would.

use std::fmt;

/// A step at which the process may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The manifest is copied.
    BackedUp,
    /// The journal says what is about to be done.
    Noted,
    /// kube-scheduler's files are written.
    Settled,
    /// The new manifest is written, but not in its place.
    Staged,
    /// The manifest is replaced.
    Replaced,
    /// The journal says that the manifest is ours.
    Patched,
    /// The journal says that all is about to be undone.
    Undoing,
    /// The manifest is as it was.
    Restored,
    /// kube-scheduler's files are gone.
    Cleaned,
    /// The copy of the manifest is gone.
    Forgotten,
}

impl Point {
    /// All of them, in their order.
    pub const ALL: [Self; 10] = [
        Self::BackedUp,
        Self::Noted,
        Self::Settled,
        Self::Staged,
        Self::Replaced,
        Self::Patched,
        Self::Undoing,
        Self::Restored,
        Self::Cleaned,
        Self::Forgotten,
    ];
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BackedUp => "backed-up",
            Self::Noted => "noted",
            Self::Settled => "settled",
            Self::Staged => "staged",
            Self::Replaced => "replaced",
            Self::Patched => "patched",
            Self::Undoing => "undoing",
            Self::Restored => "restored",
            Self::Cleaned => "cleaned",
            Self::Forgotten => "forgotten",
        })
    }
}

/// The variable that names the point at which the process ends; for tests only.
pub const VARIABLE: &str = "NANOGPU_INSTALL_DIES_AT";

/// Ends the process here if it was asked to, without a farewell.
pub fn reached(point: Point) {
    if std::env::var(VARIABLE).is_ok_and(|asked| asked == point.to_string()) {
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    }
}
