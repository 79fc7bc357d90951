//! The kubelet's own record of who holds which devices: `kubelet_internal_checkpoint`.
//!
//! It is the only place that says which container of which pod, by UID, holds a set of IDs and which
//! answer of ours the kubelet kept for it; init containers too. It is the kubelet's private file, so
//! reading is forgiving about what is new and strict about what is needed.
//!
//! The kubelet writes a temporary file, syncs it and renames it, so a reader sees a whole file or
//! the one before; there is nothing to retry. A torn file means a torn disk, and says so. The
//! checksum in it is not verified: it is a hash over how Go prints the kubelet's own types, names of
//! types included, so a renamed type would make every true file look false.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use model::{ContainerName, NameError, PodUid};
use prost::Message as _;
use serde::Deserialize;

use crate::devices::IdSet;
use crate::plugin::Allocation;

/// The name of the file, in the folder of device plugins.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// More than this is no checkpoint. Fifty thousand IDs are about three megabytes.
const LARGEST: u64 = 64 * 1024 * 1024;

/// Who holds what, as the kubelet last wrote it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Checkpoint {
    entries: Vec<Entry>,
}

/// Which writing of the file it is. The kubelet writes a new file each time, so as long as this is the
/// same, so is what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    length: u64,
    changed: (i64, i64),
}

/// What one container holds of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The pod.
    pub pod: PodUid,
    /// The container in it, init containers included.
    pub container: ContainerName,
    /// The resource.
    pub resource: String,
    /// The devices it holds, whatever NUMA node they are on.
    pub ids: IdSet,
    answer: String,
}

/// Why a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// There is none.
    #[error("{} is not there; the kubelet has not given out a device yet", path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Where it is.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is far too large.
    #[error("the device checkpoint is larger than {LARGEST} bytes, so it is none")]
    TooLarge,
    /// It is not JSON to its end.
    #[error("the device checkpoint is torn; the kubelet writes it anew with the next pod")]
    Torn(#[source] serde_json::Error),
    /// It is JSON, but says something else.
    #[error("the device checkpoint has a form that this version does not know")]
    Foreign(#[source] serde_json::Error),
    /// It has neither holders nor registered devices.
    #[error("the device checkpoint has no PodDeviceEntries, so it is none")]
    NoEntries,
    /// A pod or container in it has an impossible name.
    #[error("the device checkpoint names an impossible holder of {resource}")]
    BadHolder {
        /// Of which resource.
        resource: String,
        /// What is wrong with the name.
        #[source]
        source: NameError,
    },
}

/// Why the answer in a checkpoint cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Its text is not base64.
    #[error("the kept answer is not base64")]
    NotBase64(#[source] base64::DecodeError),
    /// Its bytes are no answer.
    #[error("the kept answer cannot be decoded")]
    NotAnAnswer(#[source] prost::DecodeError),
}

impl Checkpoint {
    /// Reads the checkpoint in the folder of device plugins.
    pub fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(FILE);
        let mut text = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut text));
        match read {
            Ok(_) if text.len() as u64 > LARGEST => Err(CheckpointError::TooLarge),
            Ok(_) => Self::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(CheckpointError::Missing { path })
            }
            Err(source) => Err(CheckpointError::Unreadable { path, source }),
        }
    }

    /// Which writing of the checkpoint is there now; nothing if none is. Take it before you read.
    pub fn stamp(folder: &Path) -> io::Result<Option<Stamp>> {
        match fs::metadata(folder.join(FILE)) {
            Ok(seen) => Ok(Some(Stamp {
                inode: seen.ino(),
                length: seen.len(),
                changed: (seen.ctime(), seen.ctime_nsec()),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a checkpoint from its text, in any of the three forms kubelets have written.
    pub fn parse(text: &[u8]) -> Result<Self, CheckpointError> {
        let file: wire::File = serde_json::from_slice(text).map_err(|error| {
            if error.is_data() {
                CheckpointError::Foreign(error)
            } else {
                CheckpointError::Torn(error)
            }
        })?;
        let data = file.data.unwrap_or(file.flat);
        if data.entries.is_none() && data.registered.is_none() {
            return Err(CheckpointError::NoEntries);
        }
        let entries = data.entries.and_then(|list| list.0).unwrap_or_default();
        Ok(Self { entries: entries.into_iter().map(Entry::try_from).collect::<Result<_, _>>()? })
    }

    /// Everything that is held.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Who holds exactly `ids` of `resource`. Containers of one pod can hold the same set: the
    /// kubelet gives an app container the IDs of the init containers before it.
    pub fn holders<'a>(
        &'a self,
        resource: &'a str,
        ids: &'a IdSet,
    ) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| entry.resource == resource && entry.ids == *ids)
    }
}

impl Entry {
    /// What the plugin answered when the container was given these devices.
    pub fn answer(&self) -> Result<Allocation, AnswerError> {
        let bytes = BASE64_STANDARD.decode(&self.answer).map_err(AnswerError::NotBase64)?;
        Allocation::decode(bytes.as_slice()).map_err(AnswerError::NotAnAnswer)
    }

    /// The CDI devices of that answer, by their full names.
    pub fn cdi_devices(&self) -> Result<Vec<String>, AnswerError> {
        Ok(self.answer()?.cdi_devices.into_iter().map(|device| device.name).collect())
    }
}

/// An answer as the kubelet writes it into its checkpoint, for tests that make one.
pub fn encode_answer(answer: &Allocation) -> String {
    BASE64_STANDARD.encode(answer.encode_to_vec())
}

impl TryFrom<wire::Entry> for Entry {
    type Error = CheckpointError;

    fn try_from(entry: wire::Entry) -> Result<Self, CheckpointError> {
        let wire::Entry { pod_uid, container_name, resource_name: resource, .. } = entry;
        let bad = |source| CheckpointError::BadHolder { resource: resource.clone(), source };
        Ok(Self {
            pod: PodUid::parse(&pod_uid).map_err(bad)?,
            container: ContainerName::parse(&container_name).map_err(bad)?,
            ids: entry.device_ids.unwrap_or_default().into(),
            answer: entry.alloc_resp.unwrap_or_default(),
            resource,
        })
    }
}

/// The file as it is written. Go writes an empty list or map as `null`.
mod wire {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde::de::IgnoredAny;

    use super::{IdSet, present};

    #[derive(Deserialize)]
    pub(super) struct File {
        #[serde(rename = "Data")]
        pub(super) data: Option<Data>,
        /// Before there was a checksum, the data stood at the top.
        #[serde(flatten)]
        pub(super) flat: Data,
    }

    #[derive(Deserialize)]
    pub(super) struct Data {
        #[serde(rename = "PodDeviceEntries", default, deserialize_with = "present")]
        pub(super) entries: Option<Nullable<Vec<Entry>>>,
        /// Every device there is, thousands of them. Nobody here asks for them, so they are passed over.
        #[serde(rename = "RegisteredDevices", default, deserialize_with = "present")]
        pub(super) registered: Option<IgnoredAny>,
    }

    /// A field that is there, perhaps as `null`.
    #[derive(Deserialize)]
    pub(super) struct Nullable<T>(pub(super) Option<T>);

    #[derive(Deserialize)]
    pub(super) struct Entry {
        #[serde(rename = "PodUID")]
        pub(super) pod_uid: String,
        #[serde(rename = "ContainerName")]
        pub(super) container_name: String,
        #[serde(rename = "ResourceName")]
        pub(super) resource_name: String,
        #[serde(rename = "DeviceIDs")]
        pub(super) device_ids: Option<Ids>,
        #[serde(rename = "AllocResp")]
        pub(super) alloc_resp: Option<String>,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    pub(super) enum Ids {
        /// Since Kubernetes 1.20, by NUMA node; -1 for devices without one.
        ByNuma(BTreeMap<String, Option<Vec<String>>>),
        /// Before.
        List(Vec<String>),
    }

    impl Default for Ids {
        fn default() -> Self {
            Self::List(Vec::new())
        }
    }

    impl From<Ids> for IdSet {
        fn from(ids: Ids) -> Self {
            match ids {
                Ids::ByNuma(nodes) => nodes.into_values().flatten().flatten().collect(),
                Ids::List(ids) => ids.into_iter().collect(),
            }
        }
    }
}

/// Tells a field that is `null` from one that is not there.
fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}
