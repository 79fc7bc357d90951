//! Which crate may depend on which: arrows point left only.
//!
//! `model <- pure <- adapters <- services <- stories`, with `limiter`, the simulated driver and
//! the testbed to one side. What two services share moves left; this rule is why it has to.

use std::fmt;

use super::Finding;
use super::repo::{Crate, Dependency, Purpose};

/// A place in the order of crates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layer {
    Model,
    Pure,
    Adapter,
    Service,
    Stories,
    /// Lives in the tenant's process: every crate it takes in is loaded there too.
    Limiter,
    /// The simulated driver and the testbed: they stand in for what is not ours. The demo on both.
    Apart,
    Xtask,
}

use Layer::{Adapter, Apart, Limiter, Model, Pure, Service, Stories, Xtask};

struct Row {
    layer: Layer,
    crates: &'static [&'static str],
    /// Layers its code and build scripts may use.
    uses: &'static [Layer],
    /// Layers its tests may use besides. Services are in none: what tests two layers together
    /// is a story.
    tests_use: &'static [Layer],
}

const TABLE: &[Row] = &[
    Row { layer: Model, crates: &["model"], uses: &[], tests_use: &[] },
    Row {
        layer: Pure,
        crates: &["dialect", "ledger", "placement", "page"],
        uses: &[Model],
        tests_use: &[Pure],
    },
    Row {
        layer: Adapter,
        crates: &["kubeapi", "kubelet", "gpu", "telemetry", "turns"],
        uses: &[Model, Pure],
        tests_use: &[Adapter, Apart],
    },
    Row {
        layer: Service,
        crates: &["scheduler", "agent", "kubectl", "installer", "run", "sim"],
        uses: &[Model, Pure, Adapter],
        tests_use: &[Apart],
    },
    Row {
        layer: Stories,
        crates: &["stories"],
        uses: &[Model, Pure, Adapter, Service, Limiter, Apart],
        tests_use: &[],
    },
    Row {
        layer: Limiter,
        crates: &["limiter"],
        uses: &[],
        tests_use: &[Model, Pure, Adapter, Apart],
    },
    Row {
        layer: Apart,
        crates: &["machine", "cuda", "nvml", "simgpu", "testbed", "demo"],
        uses: &[Model, Pure, Apart],
        tests_use: &[Adapter],
    },
    Row { layer: Xtask, crates: &["xtask"], uses: &[], tests_use: &[] },
];

/// Single arrows allowed besides, from the first to the second.
const EXCEPTIONS: &[(&str, &str)] = &[("limiter", "page")];

/// Reports every arrow that points right or sideways, and every crate without a place.
pub(super) fn check(crates: &[Crate]) -> Vec<Finding> {
    let unplaced = crates.iter().filter(|krate| row(&krate.name).is_none()).map(|krate| {
        let sentence = format!(
            "crate `{}` has no layer; add it to the table in xtask/src/tidy/arrows.rs",
            krate.name
        );
        Finding::new(krate.manifest(), sentence)
    });
    unplaced.chain(crates.iter().flat_map(wrong_arrows)).collect()
}

/// The layer of a crate, if the table has it.
pub(super) fn layer_of(name: &str) -> Option<Layer> {
    row(name).map(|row| row.layer)
}

fn row(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.crates.contains(&name))
}

fn wrong_arrows(krate: &Crate) -> Vec<Finding> {
    let Some(from) = row(&krate.name) else { return Vec::new() };
    let ours = krate.dependencies.iter().filter(|dependency| dependency.ours);
    ours.filter_map(|dependency| {
        // One without a place has its own finding.
        let to = layer_of(&dependency.name)?;
        let wrong = !allowed(krate, from, dependency, to);
        wrong.then(|| Finding::new(krate.manifest(), sentence(from.layer, dependency, to)))
    })
    .collect()
}

fn allowed(krate: &Crate, from: &Row, dependency: &Dependency, to: Layer) -> bool {
    // A crate's tests may ask for itself with more features.
    krate.name == dependency.name
        || EXCEPTIONS.contains(&(krate.name.as_str(), dependency.name.as_str()))
        || from.uses.contains(&to)
        || (dependency.purpose == Purpose::Tests && from.tests_use.contains(&to))
}

fn sentence(from: Layer, dependency: &Dependency, to: Layer) -> String {
    let what = match dependency.purpose {
        Purpose::Code | Purpose::Build => "depends",
        Purpose::Tests => "depends in its tests",
    };
    format!(
        "{what} on `{}` ({to}), which {from} may not; see xtask/src/tidy/arrows.rs",
        dependency.name
    )
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Model => "model",
            Pure => "pure",
            Adapter => "adapter",
            Service => "service",
            Stories => "stories",
            Limiter => "limiter",
            Apart => "apart",
            Xtask => "xtask",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::repo::made_up::{krate, ours};
    use super::*;

    fn arrow(from: &str, to: &str, purpose: Purpose) -> Vec<String> {
        let crates = [krate(from, vec![ours(to, purpose)])];
        check(&crates).iter().map(Finding::to_string).collect()
    }

    #[track_caller]
    fn fine(from: &str, to: &str, purpose: Purpose) {
        assert_eq!(arrow(from, to, purpose), Vec::<String>::new());
    }

    #[track_caller]
    fn wrong(from: &str, to: &str, purpose: Purpose) {
        assert_eq!(arrow(from, to, purpose).len(), 1, "{from} -> {to}");
    }

    #[test]
    fn arrows_to_the_left_are_fine() {
        fine("ledger", "model", Purpose::Code);
        fine("kubeapi", "ledger", Purpose::Code);
        fine("scheduler", "kubeapi", Purpose::Code);
        fine("scheduler", "model", Purpose::Build);
        fine("stories", "agent", Purpose::Tests);
        fine("limiter", "page", Purpose::Code);
        fine("testbed", "machine", Purpose::Code);
    }

    #[test]
    fn arrows_to_the_right_are_findings() {
        assert_eq!(
            arrow("model", "ledger", Purpose::Code),
            ["crates/model/Cargo.toml: depends on `ledger` (pure), which model may not; \
              see xtask/src/tidy/arrows.rs"]
        );
        wrong("gpu", "agent", Purpose::Build);
        wrong("sim", "stories", Purpose::Code);
    }

    #[test]
    fn neighbours_do_not_depend_on_one_another() {
        wrong("ledger", "placement", Purpose::Code);
        wrong("gpu", "kubeapi", Purpose::Code);
        wrong("agent", "scheduler", Purpose::Code);
    }

    #[test]
    fn what_stands_apart_uses_pure_crates_only() {
        wrong("limiter", "model", Purpose::Code);
        wrong("testbed", "kubeapi", Purpose::Code);
        wrong("agent", "machine", Purpose::Code);
        wrong("xtask", "model", Purpose::Tests);
    }

    #[test]
    fn tests_may_look_sideways_but_never_at_services() {
        fine("ledger", "placement", Purpose::Tests);
        fine("limiter", "cuda", Purpose::Tests);
        fine("model", "model", Purpose::Tests);
        wrong("ledger", "scheduler", Purpose::Tests);
        wrong("agent", "scheduler", Purpose::Tests);
    }

    #[test]
    fn an_unknown_crate_is_to_be_added_to_the_table() {
        let findings = check(&[krate("newcomer", vec![])]);
        assert_eq!(
            findings[0].to_string(),
            "crates/newcomer/Cargo.toml: crate `newcomer` has no layer; \
             add it to the table in xtask/src/tidy/arrows.rs"
        );
    }
}
