//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Shared GPUs: who has which card, why a pod waits, and whether all is well.
#[derive(Debug, Parser)]
#[command(name = "kubectl-nanogpu", bin_name = "kubectl nanogpu", version)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Where.
    #[command(flatten)]
    pub place: Place,
    /// In which form the answer is printed.
    #[arg(short, long, global = true, value_enum)]
    pub output: Option<Form>,
}

/// Which cluster, and how its scheduler is reached.
#[derive(Debug, Clone, Args)]
pub struct Place {
    /// The kubeconfig; else $KUBECONFIG, else ~/.kube/config, else the pod's own account.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Which of its contexts.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Which of its clusters.
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// Which of its users.
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// The namespace of pods; else that of the context.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Where nanogpu is installed.
    #[arg(long, global = true, default_value = model::names::NAMESPACE, value_name = "NAMESPACE")]
    pub system_namespace: String,
    /// Ask the scheduler at this address, in place of a tunnel through the API server.
    #[arg(long, global = true, value_name = "URL", env = "NANOGPU_SERVER")]
    pub server: Option<String>,
    /// The authority of the scheduler's certificate, a PEM file.
    #[arg(long, global = true, value_name = "FILE")]
    pub server_ca: Option<PathBuf>,
    /// Believe any certificate at --server.
    #[arg(long, global = true)]
    pub insecure_server: bool,
    /// Do not ask the scheduler; show what pods and nodes say.
    #[arg(long, global = true, conflicts_with = "server")]
    pub no_scheduler: bool,
}

/// A form of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// More columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Nodes, cards and pods, live.
    Top {
        /// Text, also on a terminal: a page every few seconds.
        #[arg(long)]
        plain: bool,
        /// One page, then end.
        #[arg(long)]
        once: bool,
        /// Seconds between looks.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
        every: u64,
    },
    /// A table of cards and who holds them.
    Inspect {
        /// Only this node.
        node: Option<String>,
        /// The tables of kubectl-inspect-gpushare.
        #[arg(long)]
        gpushare: bool,
        /// With --gpushare: pod by pod.
        #[arg(short, long, requires = "gpushare")]
        details: bool,
    },
    /// Why a pod waits, or where it sits.
    Why {
        /// The pod.
        pod: String,
    },
    /// Would this pod fit, where, and whom would it displace? Nothing is changed.
    Simulate {
        /// A manifest of a pod, or of what makes pods; - is standard input.
        #[arg(short, long)]
        filename: PathBuf,
    },
    /// The dashboard in a browser on this machine, signed in as you.
    Dashboard {
        /// The port of 127.0.0.1 to serve it on; 0 takes one that is free.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// Checks an installation and says what to do.
    Doctor,
    /// Takes a card out of service; pods on it stay.
    Cordon {
        /// Node and card, by index or by the beginning of its UUID: gpu-a/0, gpu-a/GPU-5f2e.
        #[arg(value_name = "NODE/DEVICE")]
        card: String,
    },
    /// Puts a card back into service.
    Uncordon {
        /// Node and card, by index or by the beginning of its UUID.
        #[arg(value_name = "NODE/DEVICE")]
        card: String,
    },
    /// Prints a script that completes commands in a shell.
    Completion {
        /// Which shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_declaration_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn flags_may_stand_before_or_after_the_command_as_with_kubectl() {
        for line in [["-n", "team", "why", "a"], ["why", "a", "-n", "team"]] {
            let options = Options::try_parse_from(["kubectl-nanogpu"].iter().chain(&line)).unwrap();
            assert_eq!(options.place.namespace.as_deref(), Some("team"));
        }
    }
}
