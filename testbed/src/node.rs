//! A real node: containerd and kubelet with files of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::binaries::{Binaries, Program, Progress};
use crate::cgroups::Cgroups;
use crate::component::{Component, Place, Running, Spec, anchor_of};
use crate::control::gated;
use crate::images::{self, PAUSE};
use crate::layout::{Layout, write};
use crate::options::Options;

/// The address of the `index`th node, counted from 1.
pub(crate) fn address(index: usize) -> String {
    format!("10.88.0.{}", 10 + index)
}

/// Starts a node: files, containerd, images, kubelet.
pub(crate) fn start(
    layout: &Layout,
    binaries: &Binaries,
    options: &Options,
    index: usize,
    images: &[PathBuf],
) -> anyhow::Result<()> {
    let node = format!("node{index}");
    Cgroups::of(layout.name())?.create(&node)?;
    lay_out(layout, &node)?;
    // It only sleeps: the node's files are there as long as it is.
    Spec::new(&anchor_of(&node), "sleep", Place::NewNode(node.clone()))
        .arg("infinity")
        .start(layout)?;
    let containerd = containerd(layout, binaries, options, &node)?.start(layout)?;
    wait_for_containerd(layout, binaries, &node, &containerd)?;
    for image in images {
        images::load(layout, binaries, &node, image)?;
    }
    kubelet(layout, binaries, options, &node, &address(index))?.start(layout)?;
    Ok(())
}

fn lay_out(layout: &Layout, node: &str) -> anyhow::Result<()> {
    let folder = layout.node(node);
    let own = [
        "lib/kubelet",
        "lib/containerd",
        "lib/cni",
        "log/pods",
        "log/containers",
        "run/cdi",
        "run/lock",
        "run/nri/plugins",
        "run/nri/conf",
    ];
    for name in own {
        let path = folder.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    // Addresses are given out over all nodes of the cluster, which share a bridge.
    let addresses = layout.root().join("cni");
    fs::create_dir_all(&addresses)
        .with_context(|| format!("cannot make {}", addresses.display()))?;
    let network = json!({
        "cniVersion": "0.4.0",
        "name": "testbed",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipMasq": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": addresses,
                    "ranges": [[{
                        "subnet": "10.88.0.0/16",
                        "rangeStart": "10.88.1.0",
                        "gateway": "10.88.0.1",
                    }]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    write(&folder.join("lib/cni/net.d/10-bridge.conflist"), &serde_json::to_vec_pretty(&network)?)
}

fn containerd(
    layout: &Layout,
    binaries: &Binaries,
    options: &Options,
    node: &str,
) -> anyhow::Result<Spec> {
    let config = layout.config().join(format!("containerd-{node}.toml"));
    let without_cdi = options.without_cdi.iter().any(|name| name == node);
    let (program, shim) = if without_cdi {
        let old = |program| Binaries::apart(program, &mut Progress::new());
        (old(Program::OldContainerd)?, old(Program::OldShim)?)
    } else {
        (binaries.path(Program::Containerd), binaries.path(Program::Shim))
    };
    write(&config, containerd_config(binaries, options, !without_cdi, &shim).as_bytes())?;
    let component = Component::containerd(node);
    let folder = program.parent().unwrap_or(Path::new("/")).display().to_string();
    let mut spec = Spec::new(&component, "env", Place::Node(node.to_owned()))
        .arg(format!("PATH={folder}:/usr/sbin:/sbin:/usr/bin:/bin"))
        .arg(program.display().to_string());
    spec = spec.arg("--config").arg(config.display().to_string());
    Ok(spec)
}

/// Paths are the usual ones: the node has a `/var/lib` and a `/run` of its own.
fn containerd_config(
    binaries: &Binaries,
    options: &Options,
    enable_cdi: bool,
    shim: &Path,
) -> String {
    let shim = shim.display();
    let cni = binaries.system.cni.display();
    let runtime = |name: &str, program: &str| {
        let table = format!("plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'{name}'");
        format!(
            r#"
    [{table}]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = "{shim}"
      [{table}.options]
        BinaryName = "{program}"
        SystemdCgroup = false"#
        )
    };
    let more: String = options.runtimes.iter().map(|(name, it)| runtime(name, it)).collect();
    let runtimes = runtime("runc", &binaries.system.runc.display().to_string()) + &more;
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[ttrpc]
  address = "/run/containerd/containerd.sock.ttrpc"
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = "/run/nri/nri.sock"
  plugin_path = "/run/nri/plugins"
  plugin_config_path = "/run/nri/conf"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = {enable_cdi}
  cdi_spec_dirs = ["/var/run/cdi"]
  # Root in a sandbox may lack CAP_SYS_RESOURCE, and then no process may be made less likely to be killed.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{cni}"]
    conf_dir = "/var/lib/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"{runtimes}
[plugins.'io.containerd.grpc.v1.cri']
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
"#
    )
}

/// containerd's socket, as the host sees it.
pub(crate) fn socket(layout: &Layout, node: &str) -> PathBuf {
    layout.on_node(node, "/run/containerd/containerd.sock")
}

/// Waits until containerd answers, and has all its services: a kubelet that finds the CRI not there
/// yet ends.
pub(crate) fn wait_for_containerd(
    layout: &Layout,
    binaries: &Binaries,
    node: &str,
    containerd: &Running,
) -> anyhow::Result<()> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_mins(1) {
        let answer = Command::new(binaries.path(Program::Ctr))
            .arg("--address")
            .arg(socket(layout, node))
            .arg("version")
            .output()
            .context("cannot run ctr")?;
        if answer.status.success() && has_booted(layout, &containerd.spec.name) {
            return Ok(());
        }
        if !containerd.identity.is_alive() {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("containerd of {node} does not answer: {}", last_lines(layout, &containerd.spec.name))
}

/// Whether containerd has said so since it was started last.
fn has_booted(layout: &Layout, component: &str) -> bool {
    let text = fs::read_to_string(layout.log(component)).unwrap_or_default();
    let since = text.rsplit("starting containerd").next().unwrap_or_default();
    since.contains("containerd successfully booted")
}

/// The end of a component's log, for a message.
pub(crate) fn last_lines(layout: &Layout, component: &str) -> String {
    let file = layout.log(component);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(8)..].join("\n  ");
    format!("the end of {}:\n  {last}", file.display())
}

fn kubelet(
    layout: &Layout,
    binaries: &Binaries,
    options: &Options,
    node: &str,
    address: &str,
) -> anyhow::Result<Spec> {
    let pki = layout.pki();
    let root = Cgroups::of(layout.name())?.root_of(node);
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": 10250,
        "healthzBindAddress": address,
        "healthzPort": 10248,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki.join(format!("{node}.crt")),
        "tlsPrivateKeyFile": pki.join(format!("{node}.key")),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": root,
        "failCgroupV1": false,
        "failSwapOn": false,
        "resolvConf": "/etc/resolv.conf",
        "clusterDomain": "cluster.local",
        "maxPods": 250,
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "5s",
        "makeIPTablesUtilChains": false,
    });
    merge(&mut config, &options.kubelet_config)?;
    let file = layout.config().join(format!("kubelet-{node}.yaml"));
    write(&file, &serde_json::to_vec_pretty(&config)?)?;
    let program = binaries.path(Program::Kubelet);
    let spec = Spec::new(&Component::kubelet(node), program, Place::Node(node.to_owned()))
        .file("config", &file)
        .file("kubeconfig", &layout.kubeconfig_inside(node))
        .flag("hostname-override", node)
        .flag("node-ip", address)
        .flag("v", 2);
    Ok(gated(spec, options))
}

/// Lays the keys of `text` over those of `config`.
fn merge(config: &mut Value, text: &str) -> anyhow::Result<()> {
    if text.trim().is_empty() {
        return Ok(());
    }
    let more: Value =
        serde_saphyr::from_str(text).context("the kubelet's configuration is no YAML")?;
    let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) else {
        bail!("the kubelet's configuration is no map");
    };
    config.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_can_be_configured_further() {
        let mut config = json!({"a": 1, "b": 2});
        merge(&mut config, "b: 3\nc: [4]\n").unwrap();
        assert_eq!(config, json!({"a": 1, "b": 3, "c": [4]}));
        merge(&mut config, "").unwrap();
        assert!(merge(&mut config, "- 1").is_err());
    }
}
