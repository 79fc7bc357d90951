//! The long versions of tests, run by hand and never by CI.
//!
//! Each prints the exact command first, so that a result can cite it.

use std::path::Path;

use anyhow::bail;

use crate::steps::Invocation;

struct Soak {
    name: &'static str,
    about: &'static str,
    invocation: Invocation,
}

const SOAKS: &[Soak] = &[
    Soak {
        name: "laws",
        about: "the laws of ledger and placement, on 200,000 random worlds each",
        invocation: Invocation {
            env: &[("PROPTEST_CASES", "200000")],
            unset: &[],
            line: &[
                "cargo",
                "test",
                "--release",
                "-p",
                "stories",
                "--test",
                "laws",
                "--",
                "--nocapture",
            ],
        },
    },
    Soak {
        name: "fuzz",
        about: "every fuzz target, a minute each",
        invocation: Invocation {
            env: &[("NANOGPU_FUZZ_SECONDS", "60")],
            // A count left over in the shell would end a target before its time is up.
            unset: &["BOLERO_RANDOM_ITERATIONS"],
            line: &["cargo", "test", "--release", "--workspace", "fuzz_"],
        },
    },
    Soak {
        name: "openb",
        about: "placement on the openb trace: NANOGPU_OPENB and NANOGPU_OPENB_ORDERS name folders",
        invocation: Invocation {
            env: &[],
            unset: &[],
            line: &[
                "cargo",
                "test",
                "--release",
                "-p",
                "sim",
                "--test",
                "openb",
                "--",
                "--ignored",
                "--nocapture",
            ],
        },
    },
    Soak {
        name: "simgpu",
        about: "64 processes on one simulated GPU, 10,000 acts each, a third of them killed",
        invocation: Invocation {
            env: &[("NANOGPU_KILL_PROCESSES", "64"), ("NANOGPU_KILL_ROUNDS", "10000")],
            unset: &[],
            line: &[
                "cargo",
                "test",
                "--release",
                "-p",
                "machine",
                "--test",
                "it",
                "kill",
                "--",
                "--nocapture",
            ],
        },
    },
    Soak {
        name: "cuda",
        about: "the same through libcuda.so.1: allocations, copies and launches",
        invocation: Invocation {
            env: &[("NANOGPU_CUDA_PROCESSES", "64"), ("NANOGPU_CUDA_ROUNDS", "10000")],
            unset: &[],
            line: &[
                "cargo",
                "test",
                "--release",
                "-p",
                "cuda",
                "--test",
                "it",
                "stress",
                "--",
                "--nocapture",
            ],
        },
    },
    Soak {
        name: "rounds",
        about: "50 pods at once while scheduler and API server are killed and paused, 200 rounds",
        invocation: Invocation {
            env: &[("NANOGPU_ROUNDS", "200")],
            unset: &[],
            line: &["cargo", "test", "-p", "stories", "--test", "scheduling", "rounds"],
        },
    },
    Soak {
        name: "agent",
        about: "the agent's stories on two real nodes of simulated cards, five minutes",
        invocation: Invocation {
            env: &[],
            unset: &[],
            line: &["cargo", "test", "-p", "stories", "--test", "agent"],
        },
    },
];

/// Prints what there is, a line each.
pub(crate) fn list() {
    for soak in SOAKS {
        println!("{:<8} {}", soak.name, soak.about);
    }
}

/// Runs the one called `name`.
pub(crate) fn run(root: &Path, name: &str) -> anyhow::Result<()> {
    let Some(soak) = find(name) else {
        bail!("no soak is called `{name}`; there are: {}", names().join(", "))
    };
    println!("{}", soak.invocation);
    soak.invocation.run(root)
}

fn find(name: &str) -> Option<&'static Soak> {
    SOAKS.iter().find(|soak| soak.name == name)
}

fn names() -> Vec<&'static str> {
    SOAKS.iter().map(|soak| soak.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = run(Path::new("."), "nonsense").unwrap_err();
        assert_eq!(
            error.to_string(),
            "no soak is called `nonsense`; there are: laws, fuzz, openb, simgpu, cuda, rounds, agent"
        );
    }

    #[test]
    fn a_soak_can_be_cited_by_its_command() {
        assert_eq!(
            find("fuzz").unwrap().invocation.to_string(),
            "env -u BOLERO_RANDOM_ITERATIONS NANOGPU_FUZZ_SECONDS=60 \
             cargo test --release --workspace fuzz_"
        );
    }
}
