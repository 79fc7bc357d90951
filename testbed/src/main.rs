//! `cargo xtask cluster`: brings a cluster up and down.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a tool for people at a terminal")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use comfy_table::{Table, presets};
use testbed::{
    Binaries, Cluster, ComponentState, FakeNodes, Features, Options, Parts, Program, Progress,
    SchedulerSpec, Status, clusters, down, forward, manifests, product_images, status,
    write_images,
};

#[derive(Parser)]
#[command(bin_name = "cargo xtask cluster", about = "A real Kubernetes on this machine")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring a cluster up. The first time builds Kubernetes, which takes minutes.
    Up(Up),
    /// Take a cluster down, also one that did not come up.
    Down {
        /// Which one.
        #[arg(long, default_value = "dev")]
        name: String,
        /// All of them.
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// Show what runs.
    Status {
        /// For programs.
        #[arg(long)]
        json: bool,
    },
    /// Build or find the programs that clusters and tests need, and say where they are.
    Programs,
    /// Write our images as OCI archives, with a Containerfile and a list of contents (SPDX) each.
    Images(Images),
    /// Write deploy/manifests anew from the chart. The first time builds helm, which takes minutes.
    Manifests,
    /// Lead a port on 127.0.0.1 to an address inside a cluster, until interrupted.
    Forward {
        /// Which cluster.
        name: String,
        /// The port on 127.0.0.1.
        port: u16,
        /// The address inside, such as 10.96.0.20:80.
        target: SocketAddr,
    },
}

#[derive(clap::Args)]
struct Images {
    /// Where to.
    #[arg(long, alias = "to", default_value = "target/images", value_name = "FOLDER")]
    out: PathBuf,
    /// What their names begin with.
    #[arg(long, default_value = "localhost/nanogpu", value_name = "NAME")]
    prefix: String,
    /// Behind the colon of their names.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"), value_name = "VERSION")]
    tag: String,
    /// The commit they are made from, for a label.
    #[arg(long, value_name = "COMMIT")]
    revision: Option<String>,
    /// Also those that nodes of the testbed have: base, pause, and roots of several systems.
    #[arg(long)]
    testbed: bool,
    /// Programs as the tests use them, instead of a release build, which takes minutes.
    #[arg(long)]
    debug: bool,
}

#[derive(clap::Args)]
struct Up {
    /// Its name; several stand side by side.
    #[arg(long, default_value = "dev")]
    name: String,
    /// Real nodes: a kubelet and a containerd each.
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Nodes that only the API server knows.
    #[arg(long, default_value_t = 0)]
    fake_nodes: usize,
    /// What a fake node has besides CPU and memory, or instead: `nano-gpu/gpu-percent=800`.
    #[arg(long, value_name = "RESOURCE=AMOUNT", value_parser = pair)]
    fake_capacity: Vec<(String, String)>,
    /// An annotation of every fake node; `{node}` is its name.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    fake_annotation: Vec<(String, String)>,
    /// A `KubeSchedulerConfiguration` for kube-scheduler.
    #[arg(long, value_name = "FILE")]
    scheduler_config: Option<PathBuf>,
    /// A second kube-scheduler with this configuration.
    #[arg(long, value_name = "FILE")]
    second_scheduler: Option<PathBuf>,
    /// Feature gates for all components: `A=true,B=false`.
    #[arg(long, value_name = "GATES", value_delimiter = ',', value_parser = pair)]
    feature_gates: Vec<(String, String)>,
    /// The port on 127.0.0.1 that leads to the API server; 0 for any free one.
    #[arg(long, default_value_t = 0)]
    api_port: u16,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up(up) => bring_up(up),
        Command::Down { all: true, .. } => {
            let names = clusters()?;
            if names.is_empty() {
                println!("there is no cluster");
            }
            names.iter().try_for_each(|name| take_down(name))
        }
        Command::Down { name, .. } => take_down(&name),
        Command::Status { json } => show(json),
        Command::Programs => {
            let binaries = Binaries::prepare(&mut Progress::new())?;
            for program in Program::ALL {
                println!("{:<26} {}", program.file(), binaries.path(program).display());
            }
            for program in Program::APART {
                let path = Binaries::apart(program, &mut Progress::new())?;
                println!("{:<26} {}", program.file(), path.display());
            }
            Ok(())
        }
        Command::Images(images) => make_images(images),
        Command::Manifests => {
            for (file, text) in manifests(&mut Progress::new())? {
                std::fs::write(&file, text)
                    .with_context(|| format!("cannot write {}", file.display()))?;
                println!("{}", file.display());
            }
            Ok(())
        }
        Command::Forward { name, port, target } => forward(&name, port, target),
    }
}

/// What is in the images, and where its source is: a crate that is not there has no image.
const SHIPPED: [&str; 4] = ["scheduler", "agent", "kubectl", "installer"];

fn make_images(asked: Images) -> anyhow::Result<()> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let there = |name: &&&str| crates.join(name).is_dir();
    let shipped: Vec<&str> = SHIPPED.iter().filter(there).copied().collect();
    let parts = if asked.debug {
        Parts::built()?
    } else {
        let packages = shipped.iter().chain(&["limiter"]).map(ToString::to_string).collect();
        let others: Vec<&str> = shipped.iter().copied().filter(|it| *it != "agent").collect();
        Parts {
            programs: testbed::built_to_ship(&others)?,
            agent: testbed::built_agent()?,
            limiter: testbed::built_limiter()?,
            features: Features::Packages(packages),
            wanted: Vec::new(),
            prefix: String::new(),
            tag: String::new(),
            revision: None,
        }
    };
    let parts = Parts { prefix: asked.prefix, tag: asked.tag, revision: asked.revision, ..parts };
    let made = product_images(&parts, &asked.out)?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["IMAGE", "SIZE", "USER", "CRATES", "FILE"]);
    for image in &made {
        table.add_row([
            image.name.clone(),
            format!("{:.1} MB", image.megabytes()),
            image.user.clone(),
            image.crates.to_string(),
            image.archive.display().to_string(),
        ]);
    }
    println!("{table}");
    println!(
        "\nBeside each: NAME.spdx.json, what is in it; NAME.Containerfile with NAME.rootfs, for a container engine."
    );
    if asked.testbed {
        let binaries = Binaries::prepare(&mut Progress::new())?;
        for file in write_images(&binaries, &asked.out)? {
            println!("{}", file.display());
        }
    }
    Ok(())
}

fn bring_up(up: Up) -> anyhow::Result<()> {
    let name = up.name.clone();
    testbed::abandon_on_interrupt(&name)?;
    let (cluster, started) = Cluster::up(options(up)?, &mut Progress::new())?;
    println!("cluster `{name}` is up after {:.1} s", started.total.as_secs_f64());
    for (step, time) in &started.steps {
        println!("  {:>5.1} s  {step}", time.as_secs_f64());
    }
    let kubectl = cluster.binaries().path(Program::Kubectl);
    println!("\nuse it:   export KUBECONFIG={}", cluster.layout().kubeconfig().display());
    println!("          {} get nodes", kubectl.display());
    println!("end it:   cargo xtask cluster down --name {name}");
    Ok(())
}

fn options(up: Up) -> anyhow::Result<Options> {
    let read = |file: &PathBuf| {
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
    };
    let mut options = Options::new(up.name).nodes(up.nodes);
    options.api_port = up.api_port;
    if let Some(file) = &up.scheduler_config {
        options = options.scheduler(read(file)?);
    }
    if let Some(file) = &up.second_scheduler {
        let second = SchedulerSpec { name: "second-scheduler".to_owned(), config: read(file)? };
        options.schedulers.push(second);
    }
    options.feature_gates = gates(&up.feature_gates)?;
    if up.fake_nodes > 0 {
        let mut fake = FakeNodes::new(up.fake_nodes);
        fake.capacity.extend(up.fake_capacity);
        fake.annotations.extend(up.fake_annotation);
        options = options.fake(fake);
    } else if !up.fake_capacity.is_empty() || !up.fake_annotation.is_empty() {
        bail!(
            "--fake-capacity and --fake-annotation are for fake nodes; say how many with --fake-nodes"
        );
    }
    Ok(options)
}

fn gates(pairs: &[(String, String)]) -> anyhow::Result<BTreeMap<String, bool>> {
    let gate = |(name, value): &(String, String)| match value.as_str() {
        "true" => Ok((name.clone(), true)),
        "false" => Ok((name.clone(), false)),
        other => bail!("feature gate {name} is `{other}`, neither true nor false"),
    };
    pairs.iter().map(gate).collect()
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it has the form NAME=VALUE".to_owned()),
    }
}

fn take_down(name: &str) -> anyhow::Result<()> {
    if down(name)? {
        println!("cluster `{name}` is down");
    } else {
        println!("there is no cluster `{name}`");
    }
    Ok(())
}

fn show(json: bool) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for name in clusters()? {
        found.extend(status(&name)?);
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else if found.is_empty() {
        println!("there is no cluster; start one with `cargo xtask cluster up`");
    } else {
        found.iter().for_each(print);
    }
    Ok(())
}

fn print(status: &Status) {
    let word = if status.ready { "up" } else { "not up" };
    println!(
        "cluster `{}` is {word}: {} real and {} fake nodes, {}",
        status.name, status.nodes, status.fake_nodes, status.server
    );
    println!("export KUBECONFIG={}", status.kubeconfig.display());
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["COMPONENT", "PID", "STATE", "MEMORY"]);
    for component in &status.components {
        let state = match component.state {
            ComponentState::Running => "running",
            ComponentState::Paused => "paused",
            ComponentState::Dead => "dead",
        };
        let memory = format!("{} MiB", component.resident >> 20);
        table.add_row([
            component.name.clone(),
            component.pid.to_string(),
            state.to_owned(),
            memory,
        ]);
    }
    println!("{table}\n");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn gates_are_true_or_false() {
        let pairs = |value: &str| gates(&[("A".to_owned(), value.to_owned())]);
        assert!(pairs("true").unwrap()["A"]);
        assert!(pairs("yes").unwrap_err().to_string().contains("neither true nor false"));
    }

    #[test]
    fn fake_capacity_without_fake_nodes_is_a_mistake() {
        let cli = Cli::try_parse_from(["x", "up", "--fake-capacity", "a=1"]).unwrap();
        let Command::Up(up) = cli.command else { panic!("it is up") };
        assert!(options(up).unwrap_err().to_string().contains("--fake-nodes"));
    }
}
