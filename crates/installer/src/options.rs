//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// nanogpu in the kube-scheduler that kubeadm set up, and out of it again.
#[derive(Debug, Clone, Parser)]
#[command(name = "nanogpu-install", version)]
pub struct Options {
    /// /etc/kubernetes of the machine, as seen from here
    #[arg(long, global = true, default_value = "/etc/kubernetes", env = "NANOGPU_INSTALL_ROOT")]
    pub root: PathBuf,
    /// What the machine itself calls that folder
    #[arg(long, global = true, default_value = "/etc/kubernetes")]
    pub on_host: String,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Put nanogpu into kube-scheduler; once more, to renew its certificates or settings
    Patch(Patch),
    /// See whether kube-scheduler runs with nanogpu, and roll back if it does not
    Verify(Verify),
    /// Put the manifest back as it was
    Rollback(Rollback),
    /// Say how things stand
    Status,
}

/// Options of `patch`.
#[derive(Debug, Clone, Args)]
pub struct Patch {
    /// Where kube-scheduler reaches nanogpu-scheduler, such as `https://10.96.0.50:39443/scheduler`; an
    /// IP address, because kube-scheduler resolves no names of services
    #[arg(long)]
    pub extender: Option<String>,
    /// Folder with ca.crt, client.crt and client.key, of the Secret nanogpu-scheduler-tls; those of the
    /// last time if left out
    #[arg(long)]
    pub certificates: Option<PathBuf>,
    /// Settings of the extender and the profiles; those of deploy/kube-scheduler/default-scheduler.yaml if
    /// left out
    #[arg(long)]
    pub settings: Option<PathBuf>,
    /// Neither ask nanogpu-scheduler before nor look at kube-scheduler after
    #[arg(long)]
    pub no_verify: bool,
    /// How to look at kube-scheduler.
    #[command(flatten)]
    pub checking: Checking,
}

/// Options of `verify`.
#[derive(Debug, Clone, Args)]
pub struct Verify {
    /// Leave the manifest as it is, whatever is found
    #[arg(long)]
    pub keep: bool,
    /// How to look at kube-scheduler.
    #[command(flatten)]
    pub checking: Checking,
}

/// Options of `rollback`.
#[derive(Debug, Clone, Args)]
pub struct Rollback {
    /// Also if somebody changed the manifest since; the changed one is kept beside
    #[arg(long)]
    pub force: bool,
    /// Do not wait for kube-scheduler
    #[arg(long)]
    pub no_verify: bool,
    /// How to look at kube-scheduler.
    #[command(flatten)]
    pub checking: Checking,
}

/// How to look at kube-scheduler.
#[derive(Debug, Clone, Args)]
pub struct Checking {
    /// Where kube-scheduler says whether it is well; as its flags say if left out
    #[arg(long = "verify-url")]
    pub url: Option<String>,
    /// Seconds within which it must be
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub within: u64,
    /// Seconds for which it must stay so
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=600))]
    pub steady: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_declared_without_mistakes() {
        Options::command().debug_assert();
    }
}
