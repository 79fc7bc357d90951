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
            line: "cargo test --release -p stories --test laws -- --nocapture",
        },
    },
    Soak {
        name: "fuzz",
        about: "every fuzz target, a minute each",
        invocation: Invocation {
            env: &[("NANOGPU_FUZZ_SECONDS", "60")],
            // A count left over in the shell would end a target before its time is up.
            unset: &["BOLERO_RANDOM_ITERATIONS"],
            line: "cargo test --release --workspace fuzz_",
        },
    },
    Soak {
        name: "openb",
        about: "placement on the openb trace: NANOGPU_OPENB and NANOGPU_OPENB_ORDERS name folders",
        invocation: Invocation {
            env: &[],
            unset: &[],
            line: "cargo test --release -p sim --test openb -- --ignored --nocapture",
        },
    },
    Soak {
        name: "simgpu",
        about: "64 processes on one simulated GPU, 10,000 acts each, a third of them killed",
        invocation: Invocation {
            env: &[("NANOGPU_KILL_PROCESSES", "64"), ("NANOGPU_KILL_ROUNDS", "10000")],
            unset: &[],
            line: "cargo test --release -p machine --test it kill -- --nocapture",
        },
    },
    Soak {
        name: "cuda",
        about: "the same through libcuda.so.1: allocations, copies and launches",
        invocation: Invocation {
            env: &[("NANOGPU_CUDA_PROCESSES", "64"), ("NANOGPU_CUDA_ROUNDS", "10000")],
            unset: &[],
            line: "cargo test --release -p cuda --test it stress -- --nocapture",
        },
    },
    Soak {
        name: "limiter",
        about: "shares of compute asked and got: 104 cells of ten seconds, five seeds, 95 minutes",
        invocation: Invocation {
            env: &[],
            unset: &["LIMITER_CELLS", "LIMITER_SECONDS", "LIMITER_LIBRARY"],
            line: "cargo test --release -p limiter --test accuracy the_whole_table -- --ignored --nocapture",
        },
    },
    Soak {
        name: "hostile",
        about: "what a container gets beside hostile ones, ten seconds each, eight seeds: nine minutes; as root",
        invocation: Invocation {
            env: &[],
            unset: &["LIMITER_CELLS", "LIMITER_SECONDS", "LIMITER_LIBRARY"],
            line: "cargo test --release -p limiter --test accuracy hostile_neighbours -- --ignored --nocapture",
        },
    },
    Soak {
        name: "orders",
        about: "every order of the steps of the page's protocols, by loom",
        invocation: Invocation {
            env: &[("RUSTFLAGS", "--cfg loom")],
            unset: &[],
            line: "cargo test --release -p page --lib orders --target-dir target/loom",
        },
    },
    Soak {
        name: "genuine",
        about: "all recorded lookups against NVIDIA's own libraries, fetched with apt from Debian's non-free",
        invocation: Invocation {
            env: &[],
            unset: &["NANOGPU_GENUINE_DRIVERS"],
            line: "cargo test -p limiter --test it genuine -- --ignored --nocapture",
        },
    },
    Soak {
        name: "rounds",
        about: "50 pods at once while scheduler and API server are killed and paused, 200 rounds",
        invocation: Invocation {
            env: &[("NANOGPU_ROUNDS", "200")],
            unset: &[],
            line: "cargo test -p stories --test scheduling rounds -- --nocapture",
        },
    },
    Soak {
        name: "throughput",
        about: "pods bound a second at 1,000 nodes: without an extender, with one that does nothing, with ours, with ours naming a hundred nodes, with ours over mutual TLS",
        invocation: Invocation {
            env: &[("NANOGPU_LOAD_NODES", "1000")],
            unset: &[],
            line: "cargo test -p stories --test scheduling throughput -- --ignored --nocapture",
        },
    },
    Soak {
        name: "simulated",
        about: "a made-up load on 300 nodes through kube-scheduler, against nanogpu-sim --as-extender",
        invocation: Invocation {
            env: &[("NANOGPU_SIM_NODES", "300")],
            unset: &[],
            line: "cargo test -p stories --test scheduling simulated -- --ignored --nocapture",
        },
    },
    Soak {
        name: "size",
        about: "memory of nanogpu-scheduler at 5,000 nodes and 20,000 pods",
        invocation: Invocation {
            env: &[("NANOGPU_SIZE_NODES", "5000"), ("NANOGPU_SIZE_PODS", "20000")],
            unset: &[],
            line: "cargo test -p stories --test scheduling size -- --ignored --nocapture",
        },
    },
    Soak {
        name: "verbs",
        about: "how long the extender's verbs take at 100, 1,000 and 5,000 nodes",
        invocation: Invocation {
            env: &[],
            unset: &[],
            line: "cargo bench -p scheduler --bench verbs",
        },
    },
    Soak {
        name: "agent",
        about: "the agent's stories on two real nodes, with ten minutes of pods that come and go",
        invocation: Invocation {
            env: &[("NANOGPU_CHURN_SECONDS", "600")],
            unset: &[],
            line: "cargo test --workspace --all-features --test agent -- --test-threads=1",
        },
    },
    Soak {
        name: "starts",
        about: "how long the agent takes for a start with 250 pods on the node",
        invocation: Invocation {
            env: &[("NANOGPU_BENCH", "1")],
            unset: &[],
            line: "cargo test --release -p agent --test it how_long -- --nocapture",
        },
    },
    Soak {
        name: "costs",
        about: "what the agent costs on a real node with 240 pods: starts, memory, idle CPU",
        invocation: Invocation {
            env: &[("NANOGPU_BENCH", "1")],
            unset: &[],
            line: "cargo test --workspace --all-features --test agent costing -- --nocapture",
        },
    },
    Soak {
        name: "kills",
        about: "16 processes under the limiter, 2,000 of them killed at random",
        invocation: Invocation {
            env: &[("NANOGPU_KILLS", "2000")],
            unset: &[],
            line: "cargo test -p limiter --test it processes_killed -- --nocapture",
        },
    },
];

/// Prints what there is, a line each.
pub(crate) fn list() {
    for soak in SOAKS {
        println!("{:<10} {}", soak.name, soak.about);
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
        let told = error.to_string();
        assert!(told.starts_with("no soak is called `nonsense`; there are: laws, fuzz,"), "{told}");
        assert!(SOAKS.iter().all(|soak| told.contains(soak.name)), "{told}");
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
