//! Runs a program with a part of a GPU, on a machine without Kubernetes.
//!
//! ```text
//!   nanogpu-run --memory 2Gi --cores 30 -- program
//!     |- finds the driver, its libraries and the cards
//!     |- makes a folder: driver/ the genuine libraries, pages/ limits, counters, doors; lib/ ours
//!     |- starts the program with LD_LIBRARY_PATH to lib/ and NANOGPU_ROOT to the folder
//!     `- referees all programs started this way by this user, if nobody does yet
//! ```
//!
//! It keeps a program that plays by the rules within its share. A program that wants out finds the
//! way: its environment is its own. In a container the agent's mounts leave it no such choice.
#![forbid(unsafe_code)]

mod folder;
mod refereeing;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use gpu::nvml::Nvml;
use gpu::{Driver, Gpus as _};
use model::Device;
use model::quantity::Quantity;

use folder::{Base, Share};

/// How long the driver may take to answer.
const DRIVER: Duration = Duration::from_secs(10);
/// The file of our library.
const LIBRARY: &str = "libnanogpu.so";

/// Runs a program with a part of a GPU.
#[derive(Debug, clap::Parser)]
#[command(name = "nanogpu-run", version, about)]
pub struct Args {
    /// How much memory of each card, such as 2Gi; all of it if not given
    #[arg(long, value_parser = bytes)]
    pub memory: Option<u64>,
    /// How much compute of each card, in percent; all of it if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100), default_value = "100")]
    pub cores: u32,
    /// How far compute may go while the card is idle, in percent
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub burst: Option<u32>,
    /// Which cards, by the driver's order, such as 0,2
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub device: Vec<u32>,
    /// Our library; looked for beside this program and in ../lib/nanogpu if not given
    #[arg(long, env = "NANOGPU_LIBRARY")]
    pub library: Option<PathBuf>,
    /// Where the driver is installed
    #[arg(long, env = "NANOGPU_DRIVER_ROOT", default_value = "/")]
    pub driver_root: PathBuf,
    /// Loads our library first, for programs that bring a libcuda of their own
    #[arg(long)]
    pub preload: bool,
    /// The program and what it is told
    #[arg(last = true, required = true)]
    pub program: Vec<OsString>,
}

fn bytes(text: &str) -> Result<u64, String> {
    let quantity = Quantity::parse(text).map_err(|error| error.to_string())?;
    let whole = quantity.whole().and_then(|bytes| u64::try_from(bytes).ok());
    whole.filter(|bytes| *bytes > 0).ok_or_else(|| format!("{text} is not an amount of memory"))
}

/// Runs the program to its end; says with what it ended.
pub fn run(args: &Args) -> anyhow::Result<u8> {
    let library = library(args)?;
    let driver = Driver::below(&args.driver_root);
    let devices = devices(&driver, &args.device)?;
    let burst = args.burst.unwrap_or(args.cores);
    ensure!(burst >= args.cores, "--burst {burst} is below --cores {}", args.cores);
    let base = Base::open()?;
    let shares: Vec<Share> = devices
        .iter()
        .map(|device| {
            let all = device.memory.0 << 20;
            let memory = args.memory.unwrap_or(all);
            ensure!(
                memory <= all,
                "card {} has {} MiB; --memory asks for {} MiB",
                device.index,
                all >> 20,
                memory >> 20
            );
            Ok(Share { device: device.id.as_str().to_owned(), memory, cores: args.cores, burst })
        })
        .collect::<anyhow::Result<_>>()?;
    let files = driver.files();
    let room = base.make(&shares, &files, &library)?;
    let referee = refereeing::start(base);
    let status = command(args, &room, &library, &devices)
        .status()
        .with_context(|| format!("start {}", args.program[0].display()))?;
    drop(referee);
    Ok(code(status))
}

/// Our library.
fn library(args: &Args) -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe().context("find this program")?;
    let beside = here.parent().map(|folder| folder.join(LIBRARY));
    let apart = here.parent().map(|folder| folder.join("../lib/nanogpu").join(LIBRARY));
    let known = args.library.clone().into_iter().chain(beside).chain(apart);
    let looked: Vec<PathBuf> = known.take(if args.library.is_some() { 1 } else { 2 }).collect();
    match looked.iter().find(|path| path.is_file()) {
        Some(found) => found.canonicalize().context("find our library"),
        None => bail!(
            "no {LIBRARY} at {}; --library says where it is",
            looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
        ),
    }
}

/// The cards that are meant.
fn devices(driver: &Driver, which: &[u32]) -> anyhow::Result<Vec<Device>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let nvml = Nvml::new(driver.clone(), DRIVER);
    let found = runtime.block_on(nvml.look()).context("look for GPUs")?;
    which
        .iter()
        .map(|index| {
            let card = found.devices.iter().find(|device| device.index == *index);
            card.cloned().with_context(|| {
                format!("there is no card {index}; there are {}", found.devices.len())
            })
        })
        .collect()
}

fn command(
    args: &Args,
    room: &folder::Room,
    library: &std::path::Path,
    devices: &[Device],
) -> Command {
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]);
    let mut paths = room.library_path().into_os_string();
    if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
        paths.push(":");
        paths.push(before);
    }
    let visible: Vec<&str> = devices.iter().map(|device| device.id.as_str()).collect();
    command.env("LD_LIBRARY_PATH", paths);
    command.env("NANOGPU_ROOT", room.root());
    command.env("CUDA_VISIBLE_DEVICES", visible.join(","));
    if args.preload {
        let mut first = library.as_os_str().to_owned();
        if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
            first.push(":");
            first.push(before);
        }
        command.env("LD_PRELOAD", first);
    }
    command
}

/// As a shell says it: 128 and the signal for who was killed.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}
