//! What the administrator says: flags, the environment, a file. Flags outrank the environment,
//! which outranks the file.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, CommandFactory as _, Parser};
use dialect::{Dialect, MemoryUnit, Settings};
use model::PolicyName;
use placement::Policy;

use crate::verbs::offer;

/// The scheduler extender of nanogpu.
#[derive(Debug, Clone, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(name = "nanogpu-scheduler", version)]
pub struct Options {
    /// YAML file with any of these options, by their long names
    #[arg(long, env = "NANOGPU_CONFIG")]
    pub config: Option<PathBuf>,
    /// kubeconfig of the cluster; the pod's own account if left out
    #[arg(long, alias = "kubeconf", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, instead of the kubeconfig's
    #[arg(long)]
    pub master: Option<String>,
    /// Where verbs are served in plain HTTP; may be given several times. Loopback unless --insecure
    #[arg(long, default_value = "127.0.0.1:39999", value_delimiter = ',', env = "NANOGPU_ADDRESS")]
    pub address: Vec<SocketAddr>,
    /// Where verbs are served with mutual TLS, for a kube-scheduler elsewhere and for our replicas
    #[arg(long, env = "NANOGPU_SECURE_ADDRESS")]
    pub secure_address: Option<SocketAddr>,
    /// Where other replicas reach --secure-address of this one
    #[arg(long, env = "NANOGPU_PEER_ADDRESS")]
    pub peer_address: Option<String>,
    /// Where the webhook and the read API are served with TLS
    #[arg(long, env = "NANOGPU_API_ADDRESS")]
    pub api_address: Option<SocketAddr>,
    /// Where /healthz, /readyz, /version and /metrics are served in plain HTTP
    #[arg(long, env = "NANOGPU_HEALTH_ADDRESS")]
    pub health_address: Option<SocketAddr>,
    /// Serve verbs in plain HTTP on addresses that are not loopback: whoever reaches them may bind
    #[arg(long)]
    pub insecure: bool,
    /// Let everyone who reaches it use the read API, without a token
    #[arg(long)]
    pub anonymous_read: bool,
    /// Our namespace: Leases, Secrets, our quota
    #[arg(long, default_value = model::names::NAMESPACE, env = "NANOGPU_NAMESPACE")]
    pub namespace: String,
    /// Names of schedulers whose pods we serve
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "default-scheduler,nanogpu,gpu-scheduler,vgpu-scheduler,hami-scheduler",
        env = "NANOGPU_SCHEDULER_NAMES"
    )]
    pub scheduler_names: Vec<String>,
    /// How nodes are ranked: stranding, fgd, binpack, spread, random, gpu-manager
    #[arg(long, alias = "priority", default_value = "stranding", value_parser = policy)]
    pub node_policy: PolicyName,
    /// How cards are picked, if otherwise than nodes
    #[arg(long, value_parser = policy)]
    pub device_policy: Option<PolicyName>,
    /// Of more than a hundred nodes that can take a pod, how many are named to kube-scheduler: the best; all
    /// if 0. To pods about which it has something to say more are named
    #[arg(long, default_value_t = offer::USUAL, env = "NANOGPU_OFFER")]
    pub offer: usize,
    /// Dialects spoken; all but HAMi's and vgpu-manager's if left out
    #[arg(long, value_delimiter = ',', value_parser = spoken)]
    pub dialects: Vec<Dialect>,
    /// What one aliyun.com/gpu-mem is: GiB or MiB
    #[arg(long, default_value = "GiB", value_parser = unit)]
    pub memory_unit: MemoryUnit,
    /// When nanogpu took over from another system (YYYY-MM-DDTHH:MM:SSZ): older placements count
    #[arg(long, value_parser = moment)]
    pub took_over_at: Option<String>,
    /// Read 150 of a core as elastic-gpu did: one card
    #[arg(long)]
    pub elastic_floors: bool,
    /// Label of a node's pool
    #[arg(long, default_value = "nano-gpu/pool")]
    pub pool_label: String,
    /// gpu-admission's quota, as namespace/configmap
    #[arg(long, default_value = "kube-system/gpuquota")]
    pub gpu_admission_quota: String,
    /// The name of our own quota's ConfigMap, in our namespace
    #[arg(long, default_value = "nanogpu-quota")]
    pub quota: String,
    /// Lead without an election: for a single replica
    #[arg(long)]
    pub no_leader_election: bool,
    /// Seconds a silent leader keeps the lead
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=600))]
    pub lease_seconds: u64,
    /// Who we are among the replicas; the host's name if left out
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,
    /// Seconds within which bind answers; below httpTimeout of kube-scheduler
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub bind_seconds: u64,
    /// Seconds a decision of /scheduler/predicates is valid
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub predicate_seconds: u64,
    /// The largest request, in MiB
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub body_mib: u64,
    /// Seconds a request's body may take
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub body_seconds: u64,
    /// Requests worked on at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub at_once: u64,
    /// Answer 500 to a bind that failed, as the systems we replace did; the reason is then lost
    #[arg(long)]
    pub strict_bind_status: bool,
    /// Set on pods that ask for a card and name no scheduler
    #[arg(long)]
    pub set_scheduler_name: Option<String>,
    /// Let privileged pods and pods with the host's /dev have a share
    #[arg(long)]
    pub allow_privileged: bool,
    /// Secret with our certificates
    #[arg(long, default_value = "nanogpu-scheduler-tls")]
    pub tls_secret: String,
    /// Folder with ca.crt, tls.crt and tls.key of somebody else (cert-manager), instead of our own
    #[arg(long, env = "NANOGPU_TLS_FOLDER")]
    pub tls_folder: Option<PathBuf>,
    /// Names our TLS servers are reached by
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "nanogpu-scheduler.nanogpu-system.svc,127.0.0.1,localhost"
    )]
    pub tls_names: Vec<String>,
    /// The webhook configurations that must trust us
    #[arg(long, default_value = "nanogpu-scheduler")]
    pub webhook_name: String,
    /// Lines as json or plain
    #[arg(long, default_value = "json", env = "NANOGPU_LOG_FORM")]
    pub log_form: String,
    /// error, warn, info, debug, trace; or a list of target=level; or klog's number
    #[arg(long, short = 'v', alias = "v", default_value = "info", env = "LOG_LEVEL")]
    pub log_level: String,
    /// Serve a CPU profile at /debug/pprof/profile on loopback addresses of --address
    #[arg(long, env = "NANOGPU_PPROF", value_parser = clap::builder::FalseyValueParser::new())]
    pub pprof: bool,
    /// Accepted for the sake of older command lines; does nothing
    #[arg(long = "policyConfigPath", alias = "prometheusUrl", alias = "instancePort", alias = "sync-period", alias = "isLoadSchedule", alias = "mode", alias = "pprofAddress", alias = "logtostderr", alias = "alsologtostderr", alias = "log-dir", alias = "log-file", alias = "log-file-max-size", alias = "stderrthreshold", alias = "vmodule", alias = "log-backtrace-at", alias = "log-flush-frequency", alias = "skip-headers", alias = "skip-log-headers", alias = "add-dir-header", alias = "one-output", alias = "nodeCacheCapable", alias = "enableComputeCapability", alias = "incluster-mode", hide = true, num_args = 0..=1)]
    pub ignored: Vec<String>,
}

/// Why the options cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{path} is not a list of options: {why}")]
    Content {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// An option that is none, or has a value that is none.
    #[error(transparent)]
    Clap(#[from] clap::Error),
}

impl Options {
    /// Where it listens.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + use<'_> {
        let others = [self.secure_address, self.api_address, self.health_address];
        self.address.iter().copied().chain(others.into_iter().flatten())
    }

    /// Reads the command line, the environment, and the file they name.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, OptionsError> {
        let args: Vec<OsString> = respelled(args);
        // clap's own words would be lost if a file completed a wrong command line.
        let first = Self::try_parse_from(&args)?;
        let Some(path) = &first.config else { return Ok(first.with_port()) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| OptionsError::File { path: path.clone(), source })?;
        let from_file = file_args(&text, &args)
            .map_err(|why| OptionsError::Content { path: path.clone(), why })?;
        let mut all = args;
        all.extend(from_file);
        Ok(Self::try_parse_from(all)?.with_port())
    }

    /// `PORT`, which the systems we replace read: it moves the first address.
    fn with_port(mut self) -> Self {
        let port = std::env::var("PORT").ok().and_then(|port| port.parse().ok());
        if let (Some(port), Some(first)) = (port, self.address.first_mut()) {
            first.set_port(port);
        }
        self
    }

    /// What the dialects must know.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
            gpushare_unit: self.memory_unit,
            elastic_floors: self.elastic_floors,
            took_over_at: self.took_over_at.clone(),
            ..Settings::default()
        };
        if !self.dialects.is_empty() {
            settings.enabled = self.dialects.iter().copied().collect();
        }
        settings
    }

    /// How nodes are ranked and cards picked.
    pub fn policy(&self) -> Policy {
        Policy { node: self.node_policy, device: self.device_policy.unwrap_or(self.node_policy) }
    }
}

/// The options of a file as flags, but for those that the command line or the environment has.
fn file_args(text: &str, given: &[OsString]) -> Result<Vec<OsString>, String> {
    let file: std::collections::BTreeMap<String, serde_json::Value> =
        serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let command = Options::command();
    let matches = command.clone().try_get_matches_from(given).map_err(|error| error.to_string())?;
    let has = |name: &str| {
        let known = command.get_arguments().find(|arg| is_named(arg, name));
        let source = known.and_then(|arg| matches.value_source(arg.get_id().as_str()));
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let mut args = Vec::new();
    for (name, value) in file.into_iter().filter(|(name, _)| !has(name) && name != "config") {
        match value {
            serde_json::Value::Bool(true) => args.push(format!("--{name}").into()),
            serde_json::Value::Bool(false) | serde_json::Value::Null => {}
            serde_json::Value::Array(list) => {
                let list = list.iter().map(text_of).collect::<Result<Vec<_>, _>>()?;
                args.push(format!("--{name}={}", list.join(",")).into());
            }
            other => args.push(format!("--{name}={}", text_of(&other)?).into()),
        }
    }
    Ok(args)
}

fn is_named(arg: &Arg, name: &str) -> bool {
    let mut aliases = arg.get_all_aliases().into_iter().flatten();
    arg.get_long() == Some(name) || aliases.any(|alias| alias == name)
}

/// Flags as Go programs take them: with one dash (`-priority`), and with underscores (`--log_dir`).
fn respelled(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let command = Options::command();
    let respell = |arg: OsString| {
        let Some(text) = arg.to_str() else { return arg };
        let Some(rest) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else {
            return arg;
        };
        let (name, value) = rest.split_once('=').map_or((rest, None), |(n, v)| (n, Some(v)));
        let known = |name: &str| command.get_arguments().any(|known| is_named(known, name));
        let dashed = name.replace('_', "-");
        let name = match () {
            // One letter is a short flag with one dash, here as there.
            () if name.len() < 2 => return arg,
            () if known(name) => name,
            () if known(&dashed) => &dashed,
            () => return arg,
        };
        value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")).into()
    };
    args.into_iter().map(respell).collect()
}

fn text_of(value: &serde_json::Value) -> Result<String, String> {
    match value {
        serde_json::Value::String(text) => Ok(text.clone()),
        serde_json::Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("{other} is no value of an option")),
    }
}

fn policy(text: &str) -> Result<PolicyName, String> {
    let names = PolicyName::ALL.map(PolicyName::as_str).join(", ");
    PolicyName::parse(text).ok_or_else(|| format!("a policy is one of {names}"))
}

fn spoken(text: &str) -> Result<Dialect, String> {
    let names = Dialect::ALL.map(Dialect::as_str).join(", ");
    Dialect::parse(text).ok_or_else(|| format!("a dialect is one of {names}"))
}

fn unit(text: &str) -> Result<MemoryUnit, String> {
    match text {
        "GiB" => Ok(MemoryUnit::Gibibytes),
        "MiB" => Ok(MemoryUnit::Mebibytes),
        _ => Err("a unit is GiB or MiB".to_owned()),
    }
}

/// The form in which the API writes times, to the second: texts of it can be compared.
fn moment(text: &str) -> Result<String, String> {
    let time: Result<jiff::Timestamp, _> = text.parse();
    match time {
        Ok(time) if time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() == text => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err("a time is written YYYY-MM-DDTHH:MM:SSZ, in UTC".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, clap::Error> {
        let args = ["nanogpu-scheduler"].iter().chain(args).map(OsString::from);
        Options::try_parse_from(respelled(args))
    }

    #[test]
    fn the_declaration_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn flags_of_the_systems_we_replace_are_understood() {
        let seeds = [
            vec!["--priority", "spread"],
            vec!["--priority=binpack", "--isLoadSchedule=false", "--sync-period=5s"],
            vec![
                "--address",
                "0.0.0.0:3456",
                "--kubeconfig",
                "x",
                "--master",
                "http://a",
                "--v",
                "4",
            ],
            vec!["--logtostderr=true", "--pprofAddress=127.0.0.1:3457"],
            vec!["-priority", "binpack", "-kubeconf=x", "-v=4", "-logtostderr"],
            vec!["--log_dir=/tmp", "-log_backtrace_at", "a.go:1", "--vmodule=a=1"],
            vec!["--stderrthreshold=2", "--log-flush-frequency=5s", "--alsologtostderr"],
        ];
        for args in seeds {
            parse(&args).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        }
        assert_eq!(
            parse(&["--priority", "spread"]).unwrap().policy(),
            Policy::both(PolicyName::Spread)
        );
        let go = parse(&["-priority=spread", "-kubeconf", "k", "-v", "4"]).unwrap();
        assert_eq!(go.node_policy, PolicyName::Spread);
        assert_eq!((go.kubeconfig, go.log_level.as_str()), (Some("k".into()), "4"));
        assert!(parse(&["--priority", "best"]).is_err());
        assert!(parse(&["-unheard-of"]).is_err());
    }

    #[test]
    fn a_profile_is_served_only_if_asked_for_by_our_own_flag() {
        assert!(!parse(&[]).unwrap().pprof);
        assert!(!parse(&["--pprofAddress=127.0.0.1:3457"]).unwrap().pprof);
        assert!(parse(&["--pprof"]).unwrap().pprof);
    }

    #[test]
    fn a_take_over_is_a_time_that_can_be_compared() {
        let at = |text: &str| parse(&["--took-over-at", text]).is_ok();
        assert!(at("2026-01-02T03:04:05Z"));
        for bad in ["2026-01-02", "2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05.5Z", "now"] {
            assert!(!at(bad), "{bad}");
        }
    }

    #[test]
    fn a_file_gives_what_the_command_line_leaves_out() {
        let text = "priority: spread\nnamespace: other\ninsecure: true\naddress: [127.0.0.1:1, 127.0.0.1:2]\nbody-mib: 7\n";
        let given = ["x", "--namespace=mine", "--kubeconf=k"].map(OsString::from).to_vec();
        let mut all = given.clone();
        all.extend(file_args(text, &given).unwrap());
        let options = Options::try_parse_from(all).unwrap();
        assert_eq!((options.namespace.as_str(), options.insecure), ("mine", true));
        assert_eq!((options.address.len(), options.body_mib), (2, 7));
        assert_eq!(options.node_policy, PolicyName::Spread);
        // By whichever of its names.
        assert!(file_args("kubeconfig: other\n", &given).unwrap().is_empty());
        assert!(file_args("a: {b: c}", &given).is_err());
    }
}
