//! The command line.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use machine::{DEFAULT_FOLDER, Machine, VARIABLE};

/// Simulated GPUs: make a machine, show it, break it, keep it busy.
#[derive(Debug, Parser)]
#[command(name = "nanogpu-simgpu", version, max_term_width = 100)]
pub(crate) struct Args {
    /// The folder of the machine [default: /run/nanogpu-simgpu]
    #[arg(long, global = true, value_name = "DIR", env = VARIABLE)]
    pub(crate) machine: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// The folder of the machine.
    pub(crate) fn folder(&self) -> PathBuf {
        self.machine.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FOLDER))
    }

    /// The machine that was named, or the usual one.
    pub(crate) fn machine(&self) -> anyhow::Result<&'static Machine> {
        let folder = self.folder();
        Machine::open(&folder).with_context(|| {
            format!(
                "no machine in {}; make one with `nanogpu-simgpu create --profile dgx-a100 {}`",
                folder.display(),
                folder.display()
            )
        })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the machines that `create` knows
    Profiles,
    /// Make a machine in a folder
    Create(Create),
    /// Show its cards and who uses them
    Show,
    /// Make something go wrong, or right again
    Fault {
        #[command(subcommand)]
        fault: Fault,
    },
    /// Cut a card that can be: MIG
    Mig {
        /// Which card
        device: usize,
        #[command(subcommand)]
        act: Mig,
    },
    /// Use a card: hold memory and run kernels
    Load(Load),
    /// Show the GPU time that every process really had, those that have ended too
    Usage {
        /// As JSON, a line for each process and card
        #[arg(long)]
        json: bool,
    },
    /// Move the clock of a machine whose time is virtual
    Advance {
        /// By how much
        milliseconds: u64,
    },
    /// Lay the libraries out as a driver does, for programs and agents to find
    Install(Install),
    /// Make device nodes, so that only these cards are seen
    Nodes {
        /// Where, such as the /dev of a container's root
        folder: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Create {
    /// Where
    pub(crate) folder: PathBuf,
    /// Which machine, see `profiles`
    #[arg(long)]
    pub(crate) profile: String,
    /// Version of the driver, from 535 to 615
    #[arg(long, default_value = "550.163.01", value_name = "VERSION")]
    pub(crate) driver: String,
    /// Newest CUDA it serves [default: what came with that driver]
    #[arg(long, value_name = "VERSION")]
    pub(crate) cuda: Option<String>,
    /// UUIDs and serial numbers follow from it: machines of one name have the same
    #[arg(long, default_value = "simgpu")]
    pub(crate) name: String,
    /// Only so many of the cards
    #[arg(long, value_name = "COUNT")]
    pub(crate) cards: Option<usize>,
    /// Cards that can be cut start in MIG mode
    #[arg(long)]
    pub(crate) mig: bool,
    /// Processes share a card at one time, as under MPS
    #[arg(long)]
    pub(crate) mps: bool,
    /// Time stands until it is moved or waited for
    #[arg(long)]
    pub(crate) virtual_time: bool,
    /// NVML lists PIDs as the host sees them, not as the caller's namespace does
    #[arg(long)]
    pub(crate) host_pids: bool,
    /// Where device nodes are looked for
    #[arg(long, default_value = "/dev", value_name = "DIR")]
    pub(crate) dev_root: PathBuf,
    /// Without device nodes there is no driver; else all cards are seen then
    #[arg(long)]
    pub(crate) need_nodes: bool,
}

/// Whether something begins or ends.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Off {
    /// It ends
    #[arg(long)]
    pub(crate) off: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Mig {
    /// Turn MIG mode on; nobody may be using the card
    On,
    /// Turn it off; there may be no slices
    Off,
    /// Make a slice
    Cut {
        /// Its size, such as 3g.20gb
        profile: String,
    },
    /// Take all slices away
    Clear,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Fault {
    /// Report an Xid, such as 79 or 48
    Xid {
        /// Which card
        device: usize,
        /// Which Xid
        number: u64,
    },
    /// The card falls off the bus: every call on it fails
    Lost {
        /// Which card
        device: usize,
    },
    /// The card is back
    Return {
        /// Which card
        device: usize,
    },
    /// The card is taken out of the machine; with --off it is plugged in again. Who has the library
    /// open goes on with the cards it found
    Absent {
        /// Which card
        device: usize,
        #[command(flatten)]
        off: Off,
    },
    /// Count ECC errors
    Ecc {
        /// Which card
        device: usize,
        /// Errors that were corrected
        #[arg(long, default_value_t = 0)]
        corrected: u64,
        /// Errors that were not
        #[arg(long, default_value_t = 0)]
        uncorrected: u64,
    },
    /// Remap rows of memory (from Ampere on) or retire pages (before)
    Remap {
        /// Which card
        device: usize,
        /// How many
        #[arg(default_value_t = 1)]
        count: u64,
        /// It failed
        #[arg(long)]
        failed: bool,
        /// It waits for a reset
        #[arg(long)]
        pending: bool,
    },
    /// Refuse every allocation on the card
    OutOfMemory {
        /// Which card
        device: usize,
        #[command(flatten)]
        off: Off,
    },
    /// Every call to NVML takes longer; 0 ends it
    Slow {
        /// By how much
        milliseconds: u64,
    },
    /// Calls to NVML do not return
    Hang(Off),
    /// Library and kernel module are of different versions
    Mismatch(Off),
    /// There is no driver
    NoDriver(Off),
    /// NVML names no process, as to an asker whose PID namespace shows none
    Nameless(Off),
    /// Reset a card: errors are counted anew, and what waited for a reset is done
    Reset {
        /// Which card
        device: usize,
    },
    /// End all that lasts: lost and absent cards, refused memory, slow or hanging calls
    Clear,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Load {
    /// Which card
    #[arg(long, default_value_t = 0)]
    pub(crate) device: usize,
    /// How much memory to hold, such as 2GiB; a context's is on top
    #[arg(long, default_value = "0", value_parser = bytes)]
    pub(crate) memory: u64,
    /// How much of the time kernels run, such as 50%
    #[arg(long, default_value = "0%", value_parser = percent)]
    pub(crate) busy: u64,
    /// For how long; 0 is until it is killed
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Past any library, as a process with raw system calls would: no limiter sees it. Without
    /// this the load goes through the libcuda.so.1 that the loader finds
    #[arg(long)]
    pub(crate) rogue: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Install {
    /// Where, such as /run/nvidia/driver
    #[arg(long, value_name = "DIR")]
    pub(crate) driver_root: PathBuf,
    /// Where the built libraries are [default: beside this program]
    #[arg(long, value_name = "DIR")]
    pub(crate) libraries: Option<PathBuf>,
}

/// Reads `2GiB`, `300MiB`, `64KiB` or a number of bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "Ki" | "KiB" => 10,
        "Mi" | "MiB" => 20,
        "Gi" | "GiB" => 30,
        unit => return Err(format!("`{unit}` is no unit; write 2GiB, 300MiB or 64KiB")),
    };
    let number: u64 = digits.parse().map_err(|_| "write it as 2GiB or 300MiB".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than there can be".to_owned())
}

/// Reads `50%` or `50`.
fn percent(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches('%').parse().ok();
    number.filter(|number| *number <= 100).ok_or_else(|| "write it as 50%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_declared_without_mistakes() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }

    #[test]
    fn amounts_are_read_with_their_unit() {
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("300MiB"), Ok(300 << 20));
        assert_eq!(bytes("17"), Ok(17));
        assert!(bytes("2GB").is_err());
        assert!(bytes("99999999999GiB").is_err());
        assert_eq!(percent("50%"), Ok(50));
        assert!(percent("101").is_err());
    }
}
