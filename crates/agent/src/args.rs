//! The command line.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use dialect::{Dialect, MemoryUnit, NodeMode};
use model::NodeName;

use crate::metrics::Originals;
use crate::probing::Handing;
use crate::rungs::Rung;
use crate::settings::{Extra, Folder, Settings};

/// The node's side of nanogpu: finds GPUs, hands them to containers, watches over them.
#[derive(Debug, Parser)]
#[command(name = "nanogpu-agent", version, max_term_width = 100)]
pub struct Args {
    /// The node we run on
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Where our Lease is
    #[arg(long, env = "POD_NAMESPACE", default_value = model::names::NAMESPACE)]
    pub namespace: String,
    /// How to reach the API server [default: the pod's service account]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Dialects that are spoken here, by name [default: those of the five systems]
    #[arg(long, value_delimiter = ',')]
    pub dialects: Vec<String>,
    /// What one aliyun.com/gpu-mem is: GiB or MiB
    #[arg(long, default_value = "GiB")]
    pub memory_unit: String,
    /// Who brings devices and driver files into containers: own, or toolkit for NVIDIA's
    #[arg(long, default_value = "own")]
    pub mode: String,
    /// How shares are enforced: limiter or none. With --mode toolkit a share needs none
    #[arg(long, default_value = "limiter")]
    pub isolation: String,
    /// The kubelet's folder of device plugins
    #[arg(long, default_value = "/var/lib/kubelet/device-plugins")]
    pub plugins: PathBuf,
    /// The kubelet's socket for pod resources
    #[arg(long, default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pub pod_resources: PathBuf,
    /// The runtime's folder of CDI specs
    #[arg(long, default_value = "/var/run/cdi")]
    pub cdi: PathBuf,
    /// How devices come into containers: by cdi, by folders (for a runtime without CDI; needs the
    /// capability MKNOD), or auto: by CDI until the runtime is seen to ignore it
    #[arg(long, default_value = "auto")]
    pub devices_by: String,
    /// Our folder of pages; HERE=HOST where the host sees another path
    #[arg(long, default_value = "/var/lib/nanogpu/pages")]
    pub pages: Folder,
    /// Where the driver is; HERE=HOST where the host sees another path
    #[arg(long, default_value = "/")]
    pub driver_root: Folder,
    /// Where device nodes are; HERE=HOST where the host sees another path
    #[arg(long, default_value = "/dev")]
    pub dev_root: Folder,
    /// Where our limiter is; HERE=HOST where the host sees another path
    #[arg(long, default_value = "/var/lib/nanogpu/limiter")]
    pub limiter: Folder,
    /// A libnanogpu.so to be put into that folder at the start, as our image has one [default: what
    /// is there is used as it is]
    #[arg(long, value_name = "FILE", env = "NANOGPU_LIMITER_SOURCE")]
    pub limiter_source: Option<PathBuf>,
    /// What else every container with a GPU gets, read-only: HOST=CONTAINER
    #[arg(long = "extra-mount")]
    pub extras: Vec<Extra>,
    /// The host's /proc
    #[arg(long, default_value = "/proc")]
    pub proc: PathBuf,
    /// Where metrics are served; port 0 is any free one
    #[arg(long, default_value = "0.0.0.0:9445")]
    pub listen: SocketAddr,
    /// Seconds between renewals of the Lease
    #[arg(long, default_value_t = 10)]
    pub heartbeat: u64,
    /// Milliseconds between looks at the cards
    #[arg(long, default_value_t = 3000)]
    pub look: u64,
    /// Seconds a leaving holder is waited for
    #[arg(long, default_value_t = 20)]
    pub patience: u64,
    /// Seconds a card must be well before it takes new work again
    #[arg(long, default_value_t = 60)]
    pub probation: u64,
    /// Evict pods that use more memory of a card than they were given
    #[arg(long)]
    pub evict: bool,
    /// Tell the metrics of gpu-manager and of nano-gpu's exporter beside ours
    #[arg(long)]
    pub original_metrics: bool,
    /// Serve gpu-manager's own limiter in pods of its dialects from this folder, such as
    /// /etc/gpu-manager/vm; HERE=HOST where the host sees another path [default: not served]
    #[arg(long)]
    pub vcuda: Option<Folder>,
    /// Lines as json or plain
    #[arg(long, default_value = "json")]
    pub log_form: String,
    /// error, warn, info, debug or trace
    #[arg(long, default_value = "info")]
    pub log_level: String,
}

impl Args {
    /// The settings these arguments mean.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let mode = match self.mode.as_str() {
            "own" => NodeMode::Own,
            "toolkit" => NodeMode::Toolkit,
            other => bail!("--mode is own or toolkit, not {other:?}"),
        };
        let rung: Rung = self.isolation.parse()?;
        let handing: Handing = self.devices_by.parse().context("--devices-by")?;
        // Which cards NVIDIA's toolkit brings is said in a variable, and those are known too late.
        let handing = match (mode, handing) {
            (NodeMode::Toolkit, Handing::Folders) => {
                bail!("--mode toolkit needs CDI: it cannot go with --devices-by folders")
            }
            (NodeMode::Toolkit, _) => Handing::Cdi,
            (NodeMode::Own, handing) => handing,
        };
        let mut dialects = dialect::Settings::default();
        if !self.dialects.is_empty() {
            let named = self.dialects.iter().map(|name| {
                Dialect::parse(name.trim())
                    .with_context(|| format!("no dialect is called {name:?}"))
            });
            dialects.enabled = named.collect::<anyhow::Result<BTreeSet<_>>>()?;
        }
        dialects.gpushare_unit = match self.memory_unit.as_str() {
            "GiB" => MemoryUnit::Gibibytes,
            "MiB" => MemoryUnit::Mebibytes,
            other => bail!("--memory-unit is GiB or MiB, not {other:?}"),
        };
        Ok(Settings {
            node: NodeName::parse(&self.node_name).context("--node-name")?,
            namespace: self.namespace.clone(),
            dialects,
            mode,
            rung,
            plugins: self.plugins.clone(),
            pod_resources: self.pod_resources.clone(),
            cdi: self.cdi.clone(),
            handing,
            pages: self.pages.clone(),
            driver: self.driver_root.clone(),
            dev: self.dev_root.clone(),
            limiter: self.limiter.clone(),
            extras: self.extras.clone(),
            proc: self.proc.clone(),
            listen: self.listen,
            beat: Duration::from_secs(self.heartbeat.max(1)),
            look: Duration::from_millis(self.look.max(100)),
            patience: Duration::from_secs(self.patience),
            probation: Duration::from_secs(self.probation),
            evict: self.evict,
            vcuda: self.vcuda.clone(),
            originals: if self.original_metrics { Originals::Too } else { Originals::No },
        })
    }
}
