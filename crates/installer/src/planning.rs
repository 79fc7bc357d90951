//! All that will be written, before anything is. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::flags::{self, BadFlag};
use crate::journal::Digest;
use crate::manifest::{CONFIG, Manifest, ManifestError};
use crate::settings::{self, SettingsError};
use crate::yaml::{self, YamlError};

/// What a plan is made from.
#[derive(Debug)]
pub struct Sources<'a> {
    /// The manifest as it is without us.
    pub original: &'a Manifest,
    /// Our settings.
    pub ours: &'a Value,
    /// The operator's own configuration, if kube-scheduler has one.
    pub theirs: Option<&'a Value>,
    /// Certificates by the names of their files.
    pub certificates: &'a BTreeMap<String, Vec<u8>>,
    /// Our folder, as the host calls it.
    pub folder: &'a str,
}

/// All that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The new manifest.
    pub manifest: String,
    /// kube-scheduler's files, by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The manifest is left alone.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A flag cannot be carried over.
    #[error(transparent)]
    Flag(#[from] BadFlag),
    /// The operator's own configuration.
    #[error("kube-scheduler has a configuration of its own, into which nanogpu cannot be put")]
    Theirs(#[source] SettingsError),
    /// Ours cannot be written.
    #[error("kube-scheduler's configuration cannot be written")]
    Config(#[source] YamlError),
    /// The manifest is patched and nobody knows what it was.
    #[error(
        "the manifest already names nanogpu's configuration, but what it was before is not kept; take `--config` and the volume out of it by hand first, or let `kubeadm init phase control-plane scheduler` write it anew"
    )]
    NoBackup,
}

/// Makes the plan.
pub fn plan(sources: &Sources) -> Result<Plan, PlanError> {
    if sources.original.is_ours() {
        return Err(PlanError::NoBackup);
    }
    let config = if let Some(theirs) = sources.theirs {
        settings::merged(theirs, sources.ours).map_err(PlanError::Theirs)?
    } else {
        let carried = flags::carried(&sources.original.words())?;
        settings::with_flags(sources.ours.clone(), &carried)
    };
    let mut files = sources.certificates.clone();
    files.insert(CONFIG.to_owned(), yaml::write(&config).map_err(PlanError::Config)?.into_bytes());
    let parts = files.iter().flat_map(|(name, bytes)| [name.as_bytes(), bytes.as_slice()]);
    let digest = Digest::of_all(parts);
    let manifest = sources.original.patched(sources.folder, digest.as_str())?;
    Ok(Plan { manifest, files })
}
