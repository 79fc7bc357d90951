//! The parts of a spec, as JSON has them.

use std::collections::BTreeSet;

use model::ids::Quoted;
use serde::{Deserialize, Serialize};

use super::SpecError;
use super::names::{Kind, check_device_name};

/// The version we write. The oldest with device names that begin with a digit and with paths of
/// device nodes on the host, because a runtime refuses every version it does not know.
const VERSION: &str = "0.5.0";

const KNOWN_VERSIONS: &[&str] =
    &["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

const HOOKS: &[&str] =
    &["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// A spec file: a kind, and what each of its devices changes in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    cdi_version: String,
    kind: Kind,
    devices: Vec<Device>,
    #[serde(default, skip_serializing_if = "ContainerEdits::is_empty")]
    container_edits: ContainerEdits,
}

impl Spec {
    /// A spec that runtimes will take.
    pub fn new(kind: Kind, devices: impl IntoIterator<Item = Device>) -> Result<Self, SpecError> {
        let spec = Self {
            cdi_version: VERSION.into(),
            kind,
            devices: devices.into_iter().collect(),
            container_edits: ContainerEdits::default(),
        };
        spec.check()?;
        Ok(spec)
    }

    /// What every container gets that names a device of this spec.
    pub fn with_common_edits(self, edits: ContainerEdits) -> Result<Self, SpecError> {
        edits.check()?;
        Ok(Self { container_edits: edits, ..self })
    }

    /// The kind of its devices.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Its devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// What every container gets that names a device of this spec.
    pub fn common_edits(&self) -> &ContainerEdits {
        &self.container_edits
    }

    pub(super) fn check(&self) -> Result<(), SpecError> {
        if !KNOWN_VERSIONS.contains(&self.cdi_version.trim_start_matches('v')) {
            return Err(SpecError::BadVersion { version: Quoted::new(&self.cdi_version) });
        }
        if self.devices.is_empty() {
            return Err(SpecError::NoDevice);
        }
        let mut names = BTreeSet::new();
        for device in &self.devices {
            device.check()?;
            if !names.insert(&device.name) {
                return Err(SpecError::RepeatedDevice { name: Quoted::new(&device.name) });
            }
        }
        self.container_edits.check()
    }
}

/// One device of a spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    name: String,
    container_edits: ContainerEdits,
}

impl Device {
    /// A device that makes these edits.
    pub fn new(name: impl Into<String>, edits: ContainerEdits) -> Result<Self, SpecError> {
        let device = Self { name: name.into(), container_edits: edits };
        device.check()?;
        Ok(device)
    }

    /// Its name, without the kind.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it changes in a container.
    pub fn edits(&self) -> &ContainerEdits {
        &self.container_edits
    }

    fn check(&self) -> Result<(), SpecError> {
        check_device_name(&self.name)?;
        if self.container_edits.is_empty() {
            return Err(SpecError::NoEdits { name: Quoted::new(&self.name) });
        }
        self.container_edits.check()
    }
}

/// What changes in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerEdits {
    /// Variables, as `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes, with the right to use them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Files and folders of the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Programs the runtime starts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
}

impl ContainerEdits {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn check(&self) -> Result<(), SpecError> {
        check_env(&self.env)?;
        self.device_nodes.iter().try_for_each(DeviceNode::check)?;
        self.mounts.iter().try_for_each(Mount::check)?;
        self.hooks.iter().try_for_each(Hook::check)
    }
}

/// A device node in the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Where it is in the container.
    pub path: String,
    /// Where it is on the host, if elsewhere. The runtime looks there for what is not said here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// `c` for a character device, `b` for a block device, `u`, or `p` for a pipe.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub node_type: Option<String>,
    /// Its major number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Its minor number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// Its mode, such as 0o666.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Some of `r`, `w` and `m`; all three if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// Its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

impl DeviceNode {
    /// The node that is at `path` on the host, at the same path in the container.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    fn check(&self) -> Result<(), SpecError> {
        check_path(&self.path)?;
        self.host_path.as_deref().map_or(Ok(()), check_path)?;
        if let Some(node_type) = &self.node_type
            && !["b", "c", "u", "p"].contains(&node_type.as_str())
        {
            return Err(SpecError::BadType { node_type: Quoted::new(node_type) });
        }
        if let Some(permissions) = &self.permissions
            && (permissions.is_empty() || permissions.bytes().any(|byte| !b"rwm".contains(&byte)))
        {
            return Err(SpecError::BadPermissions { permissions: Quoted::new(permissions) });
        }
        Ok(())
    }
}

/// A file or folder of the host in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Where it is on the host.
    pub host_path: String,
    /// Where it is in the container.
    pub container_path: String,
    /// How it is mounted: `ro`, `nosuid`, `bind` and the like.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// A file system, if it is no bind mount.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub mount_type: Option<String>,
}

impl Mount {
    /// A file or folder the container may read and not change, nor run as another user.
    pub fn read_only(host_path: impl Into<String>, container_path: impl Into<String>) -> Self {
        let options = ["ro", "nosuid", "nodev", "rbind", "rprivate"].map(String::from).into();
        Self {
            host_path: host_path.into(),
            container_path: container_path.into(),
            options,
            mount_type: None,
        }
    }

    fn check(&self) -> Result<(), SpecError> {
        check_path(&self.container_path)?;
        // With a file system of its own the source is a word, such as `tmpfs`.
        if self.mount_type.is_some() && !self.host_path.is_empty() {
            return Ok(());
        }
        check_path(&self.host_path)
    }
}

/// A program the runtime starts at a point of the container's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// The point, as OCI calls it: `createContainer` and the like.
    pub hook_name: String,
    /// The program, on the host.
    pub path: String,
    /// Its arguments, its own name first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its variables, as `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// How many seconds it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

impl Hook {
    fn check(&self) -> Result<(), SpecError> {
        if !HOOKS.contains(&self.hook_name.as_str()) {
            return Err(SpecError::BadHook { hook: Quoted::new(&self.hook_name) });
        }
        check_path(&self.path)?;
        check_env(&self.env)
    }
}

fn check_env(env: &[String]) -> Result<(), SpecError> {
    let bad = |entry: &&String| entry.find('=').is_none_or(|at| at == 0) || entry.contains('\0');
    match env.iter().find(bad) {
        Some(entry) => Err(SpecError::BadEnv { entry: Quoted::new(entry) }),
        None => Ok(()),
    }
}

fn check_path(path: &str) -> Result<(), SpecError> {
    if path.starts_with('/') && !path.contains('\0') {
        Ok(())
    } else {
        Err(SpecError::BadPath { path: Quoted::new(path) })
    }
}
