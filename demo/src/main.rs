//! `cargo xtask demo`: nanogpu on a real Kubernetes of two nodes with simulated cards.
//!
//! It stays up for its audience to play with. With `--once` every act is a check, and nothing stays.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a demo talks to a person")]

mod installing;
mod nodes;
mod pods;
mod showing;
mod telling;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use testbed::{Binaries, Cluster, Options, Program, Progress};

use crate::installing::{SYSTEM, Tools, until};
use crate::nodes::Machines;
use crate::showing::Stage;
use crate::telling::Teller;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask demo",
    about = "nanogpu on a real Kubernetes with simulated cards"
)]
struct Cli {
    /// Check every act, and take everything down at the end.
    #[arg(long)]
    once: bool,
    /// The cluster's name, for tests: a person's demo is not to be touched.
    #[arg(long, hide = true, default_value = "demo", conflicts_with = "once")]
    name: String,
    #[command(subcommand)]
    command: Option<Hidden>,
}

#[derive(Subcommand)]
enum Hidden {
    /// The way into the cluster, which it starts itself.
    #[command(hide = true)]
    Forward { name: String, port: u16, target: SocketAddr },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse() {
        Cli { command: Some(Hidden::Forward { name, port, target }), .. } => {
            testbed::forward(&name, port, target)
        }
        Cli { once: true, .. } => once(),
        Cli { once: false, name, .. } => stay(&name),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// For a machine: under a name of its own, so that a person's demo is not touched.
fn once() -> anyhow::Result<()> {
    const NAME: &str = "demo-once";
    testbed::abandon_on_interrupt(NAME)?;
    // One that was killed before may have left something.
    testbed::down(NAME)?;
    let outcome = show(NAME, &mut Teller::new()).map(drop);
    let down = testbed::down(NAME);
    outcome?;
    down?;
    println!("\nEvery act was as it should be, and nothing is left.");
    Ok(())
}

/// For a person: what comes up stays.
fn stay(name: &str) -> anyhow::Result<()> {
    let outcome = show(name, &mut Teller::new());
    if outcome.is_err() && testbed::status(name)?.is_some_and(|status| status.ready) {
        eprintln!("\nThe cluster is still up. To look at it:");
        eprintln!("   export KUBECONFIG={}", testbed::Layout::of(name)?.kubeconfig().display());
        eprintln!("To take it down: cargo xtask cluster down --name {name}");
    }
    let shown = outcome?;
    let teller = Teller::new();
    teller.title("It goes on: the cluster stays up.");
    teller.say(&format!("Dashboard   {}", shown.dashboard));
    teller.say("            (a browser on this machine; the address is the key)");
    println!();
    let [kubectl, ours] = shown.folders.map(|folder| folder.display().to_string());
    teller.say(&format!("export KUBECONFIG={}", shown.kubeconfig.display()));
    teller.say(&format!("export PATH={kubectl}:{ours}:$PATH"));
    println!();
    for (line, about) in [
        ("kubectl nanogpu top", "nodes, cards and pods, live"),
        ("kubectl nanogpu inspect", "the same as a table"),
        ("kubectl nanogpu why -n demo four-t4", "why a pod waits"),
        ("kubectl nanogpu cordon node2/0", "take a card out of service"),
        ("kubectl delete pod -n demo fifty", "and watch the dashboard"),
        ("kubectl nanogpu doctor", "is all well?"),
    ] {
        teller.say(&format!("{line:<40}{about}"));
    }
    println!();
    teller
        .say(&format!("{:<40}take it all away", format!("cargo xtask cluster down --name {name}")));
    Ok(())
}

/// What is there when the show is over.
struct Shown {
    kubeconfig: PathBuf,
    folders: [PathBuf; 2],
    dashboard: String,
}

fn show(name: &str, teller: &mut Teller) -> anyhow::Result<Shown> {
    teller.title("nanogpu: shared GPUs, on a real Kubernetes with simulated cards");
    let programs = programs()?;

    teller.act("A cluster");
    // With a bar of its own if something has to be built.
    Binaries::prepare(&mut Progress::new())?;
    let helm = Binaries::apart(Program::Helm, &mut Progress::new())?;
    let before = Cluster::find(name, &mut Progress::new())?;
    let is_new = before.is_none();
    let cluster = match before {
        Some(cluster) => {
            teller.say("It is up from an earlier demo and used again. To begin anew:");
            teller.say(&format!("cargo xtask cluster down --name {name}"));
            cluster
        }
        None => teller.step("starting two nodes: kubelet, containerd, runc", || up(name))?,
    };
    let machines = Machines::new(&cluster, &programs);
    teller.step("giving them simulated cards: 8 A100 and 4 T4", || machines.make())?;
    let tools = Tools::new(&cluster, &programs, helm);
    teller.command("kubectl get nodes");
    teller.shown(&tools.kubectl(&["get", "nodes"])?);

    teller.act("nanogpu on it");
    if is_new {
        put_on(&cluster, &programs, &tools, teller)?;
    }
    teller.step("waiting for the webhook and for the agents to offer cards", || {
        installing::ready(&tools)
    })?;
    teller.command(&format!("kubectl get pods -n {SYSTEM}"));
    teller.shown(&tools.kubectl(&["get", "pods", "-n", SYSTEM])?);

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let session = cluster.session()?;
    let stage = Stage { cluster: &cluster, session, runtime, tools, machines };
    stage.dialects(teller)?;
    stage.waiting(teller)?;
    stage.refused(teller)?;
    stage.memory(teller)?;
    stage.compute(teller)?;
    teller.act("The dashboard");
    let dashboard = teller.step("serving it on this machine", || dashboard(&cluster, &programs))?;
    let folders = stage.tools.folders.clone();
    Ok(Shown { kubeconfig: cluster.layout().kubeconfig(), folders, dashboard })
}

/// The folder of our programs, built from this tree; `NANOGPU_PROGRAMS` names another, whose programs
/// (and `libnanogpu.so`) are taken as they are.
fn programs() -> anyhow::Result<PathBuf> {
    match std::env::var_os("NANOGPU_PROGRAMS") {
        Some(folder) => Ok(folder.into()),
        None => testbed::built(),
    }
}

fn up(name: &str) -> anyhow::Result<Cluster> {
    let mut options = Options::new(name).nodes(2);
    // A container that ends starts again at once, so that nobody waits for it.
    "crashLoopBackOff: {maxContainerRestartPeriod: 1s}".clone_into(&mut options.kubelet_config);
    Ok(Cluster::up(options, &mut Progress::new())?.0)
}

/// Our images onto the nodes, and our chart onto the cluster.
fn put_on(
    cluster: &Cluster,
    programs: &Path,
    tools: &Tools,
    teller: &Teller,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let made = teller
        .step("making images: scheduler, agent with limiter, kube-scheduler", || {
            installing::images(cluster, programs, folder.path())
        })?;
    let sizes = made.iter().map(|image| format!("{} ({:.0} MB)", image.name, image.megabytes()));
    for line in sizes {
        teller.say(&format!("    {line}"));
    }
    teller
        .step("loading them onto both nodes", || installing::load(cluster, &made, folder.path()))?;
    teller.step("helm install nanogpu deploy/chart/nanogpu", || {
        installing::install(tools, folder.path())
    })
}

/// The dashboard, served as long as the cluster lives; its address. It is looked at once.
fn dashboard(cluster: &Cluster, programs: &Path) -> anyhow::Result<String> {
    let kubeconfig = cluster.layout().kubeconfig().display().to_string();
    let words = ["dashboard", "--kubeconfig", &kubeconfig, "--namespace", showing::NAMESPACE];
    cluster.beside("dashboard", &programs.join("kubectl-nanogpu"), &words)?;
    let mut address = String::new();
    until("kubectl nanogpu dashboard told no address", || {
        let said = std::fs::read_to_string(cluster.layout().log("dashboard"))?;
        let line = said.lines().find(|line| line.starts_with("http://"));
        line.unwrap_or_default().clone_into(&mut address);
        Ok(!address.is_empty())
    })?;
    let rest = address.strip_prefix("http://").context("an address of this machine")?;
    let (host, path) = rest.split_once('/').context("a path")?;
    let path = path.split('#').next().unwrap_or_default();
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    ensure!(
        page.starts_with("HTTP/1.1 200"),
        "the dashboard answers {}",
        page.lines().next().unwrap_or_default()
    );
    Ok(address)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
