//! kube-scheduler's static pod: what it starts with, and the same pod with nanogpu in it. Pure.

use model::names;
use serde_json::{Value, json};

use crate::flags;
use crate::yaml::{self, YamlError};

/// Where kube-scheduler finds our files, inside its container.
pub const INSIDE: &str = "/etc/kubernetes/nanogpu";
/// The configuration among them.
pub const CONFIG: &str = "scheduler-config.yaml";
/// The port kube-scheduler serves its health on, unless told otherwise.
const PORT: &str = "10259";
const VOLUME: &str = "nanogpu-settings";
const PROGRAM: &str = "kube-scheduler";

/// A manifest of kube-scheduler, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pod: Value,
    container: usize,
}

/// Why a manifest is left alone.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It cannot be read.
    #[error("the manifest cannot be read")]
    Yaml(#[from] YamlError),
    /// It is something else.
    #[error("the manifest is no Pod")]
    NoPod,
    /// Nobody to patch.
    #[error("the manifest has no container that is kube-scheduler")]
    NoScheduler,
    /// Too many to patch.
    #[error(
        "the manifest has {0} containers that are kube-scheduler; which one is meant cannot be told"
    )]
    Several(usize),
    /// A script or a wrapper.
    #[error(
        "kube-scheduler's container starts `{0}`, so the flags of kube-scheduler itself cannot be told; write them into the manifest as kubeadm does"
    )]
    OtherProgram(String),
    /// Somebody has our name.
    #[error(
        "the manifest already has a volume `{VOLUME}`, or something else at {INSIDE}; remove it first"
    )]
    Taken,
}

impl Manifest {
    /// Reads a manifest.
    pub fn read(text: &str) -> Result<Self, ManifestError> {
        let pod = yaml::read(text)?;
        if pod["kind"] != "Pod" {
            return Err(ManifestError::NoPod);
        }
        let containers = pod["spec"]["containers"].as_array().map_or(&[][..], Vec::as_slice);
        let is_it = |container: &&Value| {
            let program = container["command"][0].as_str().unwrap_or_default();
            container["name"] == PROGRAM || file_name(program) == PROGRAM
        };
        let several = containers.iter().filter(is_it).count();
        let found = containers.iter().position(|container| is_it(&container));
        let container = match (found, several) {
            (Some(index), 1) => index,
            (Some(_), several) => return Err(ManifestError::Several(several)),
            (None, _) => return Err(ManifestError::NoScheduler),
        };
        let starts = containers[container]["command"][0].as_str().unwrap_or_default();
        // Without a command the image's own is started, which is kube-scheduler.
        if !starts.is_empty() && file_name(starts) != PROGRAM {
            return Err(ManifestError::OtherProgram(starts.to_owned()));
        }
        Ok(Self { pod, container })
    }

    /// All words kube-scheduler is started with.
    pub fn words(&self) -> Vec<String> {
        let container = &self.pod["spec"]["containers"][self.container];
        let lists = [&container["command"], &container["args"]];
        lists.iter().flat_map(|list| texts(list)).collect()
    }

    /// The value of a flag.
    pub fn flag(&self, name: &str) -> Option<String> {
        flags::value(&self.words(), name)
    }

    /// Whether kube-scheduler reads our configuration.
    pub fn is_ours(&self) -> bool {
        self.flag("config").is_some_and(|path| path == ours())
    }

    /// Where kube-scheduler says whether it is well, as somebody on its machine asks.
    pub fn health(&self) -> String {
        let port = self.flag("secure-port").unwrap_or_else(|| PORT.to_owned());
        let host = match self.flag("bind-address").as_deref() {
            None | Some("0.0.0.0" | "::" | "[::]") => "127.0.0.1".to_owned(),
            Some(v6) if v6.contains(':') && !v6.starts_with('[') => format!("[{v6}]"),
            Some(host) => host.to_owned(),
        };
        format!("https://{host}:{port}/healthz")
    }

    /// The path on the host of what kube-scheduler sees at `inside`, if it is the host's.
    pub fn on_host(&self, inside: &str) -> Option<String> {
        let mounts = self.pod["spec"]["containers"][self.container]["volumeMounts"].as_array()?;
        let below = |mount: &Value| {
            let rest = inside.strip_prefix(mount["mountPath"].as_str()?.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
        };
        let (mount, rest) = mounts
            .iter()
            .filter_map(|mount| Some((mount, below(mount)?)))
            .min_by_key(|(_, rest)| rest.len())?;
        let volumes = self.pod["spec"]["volumes"].as_array()?;
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"])?;
        let folder = volume["hostPath"]["path"].as_str()?.trim_end_matches('/');
        Some(match mount["subPath"].as_str() {
            Some(sub) => format!("{folder}/{sub}{rest}"),
            None => format!("{folder}{rest}"),
        })
    }

    /// The same pod with our configuration, which lies in `folder` on the host. `digest` is that of
    /// everything in the folder.
    pub fn patched(&self, folder: &str, digest: &str) -> Result<String, ManifestError> {
        let mut pod = self.pod.clone();
        let container = &mut pod["spec"]["containers"][self.container];
        // Where the other flags are.
        let list = if texts(&container["args"]).is_empty() { "command" } else { "args" };
        for name in ["command", "args"] {
            let words = texts(&container[name]);
            if name == list {
                container[name] = json!(flags::with(&words, "config", &ours()));
            } else if !words.is_empty() {
                // Said there it would outrank ours, or be outranked by chance.
                let mut words = flags::with(&words, "config", "");
                words.pop();
                container[name] = json!(words);
            }
        }
        let mount = json!({"name": VOLUME, "mountPath": INSIDE, "readOnly": true});
        add(container, "volumeMounts", mount, |other| {
            other["name"] == VOLUME || other["mountPath"] == INSIDE
        })?;
        let volume = json!({"name": VOLUME, "hostPath": {"path": folder, "type": "Directory"}});
        add(&mut pod["spec"], "volumes", volume, |other| other["name"] == VOLUME)?;
        let metadata = &mut pod["metadata"];
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        metadata["annotations"][names::SETTINGS] = json!(digest);
        Ok(yaml::write(&pod)?)
    }
}

/// Our configuration, as kube-scheduler is told of it.
pub fn ours() -> String {
    format!("{INSIDE}/{CONFIG}")
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn texts(list: &Value) -> Vec<String> {
    let words = list.as_array().into_iter().flatten();
    words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
}

fn add(
    to: &mut Value,
    name: &str,
    item: Value,
    clashes: impl Fn(&Value) -> bool,
) -> Result<(), ManifestError> {
    let list = &mut to[name];
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return Ok(()) };
    if list.iter().any(clashes) {
        return Err(ManifestError::Taken);
    }
    list.push(item);
    Ok(())
}
