//! What nobody needs any more: specs and pages of containers that are gone.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::path::Path;

use kubelet::cdi::{Kind, Specs};
use kubelet::checkpoint::{Checkpoint, CheckpointError};
use model::PodUid;

use crate::identity::named;
use crate::living::Processes;
use crate::pods::Pods;
use crate::records::{Record, Records};
use crate::starting::{STEM, chain};

/// The names that are kept of `names`: those the kubelet's checkpoint has an answer for, and
/// those whose pod lives or is still shown on this node.
pub fn kept<'a>(
    records: &'a [Record],
    in_checkpoint: &BTreeSet<String>,
    lives: &dyn Fn(&PodUid) -> bool,
) -> BTreeSet<&'a str> {
    let kept =
        records.iter().filter(|record| in_checkpoint.contains(&record.name) || lives(&record.pod));
    kept.map(|record| record.name.as_str()).collect()
}

/// Removes what nobody needs, and says how many. Blocks.
///
/// Nothing is removed while the pods are not known, or specs, records or the checkpoint in the folder
/// `plugins` cannot be read. Specs are listed first, then records, then holders: a start goes the
/// other way, so what begins meanwhile is known by then.
pub fn collect(
    specs: &Specs,
    records: &Records,
    plugins: &Path,
    kind: &Kind,
    pods: &Pods,
    processes: &Processes,
) -> usize {
    if !pods.are_synced() {
        return 0;
    }
    let stems = match specs.list(STEM) {
        Ok(stems) => stems,
        Err(error) => {
            tracing::warn!(error = chain(&error), "nothing is collected");
            return 0;
        }
    };
    let all = match records.list() {
        Ok(all) => all,
        Err(error) => {
            tracing::warn!(error = chain(&error), "nothing is collected");
            return 0;
        }
    };
    let checkpoint = match Checkpoint::read(plugins) {
        Ok(checkpoint) => checkpoint,
        Err(CheckpointError::Missing { .. }) => Checkpoint::default(),
        Err(error) => {
            tracing::warn!(error = chain(&error), "nothing is collected");
            return 0;
        }
    };
    let answers = checkpoint.entries().iter().filter_map(|entry| entry.answer().ok());
    let named: BTreeSet<String> =
        answers.filter_map(|answer| Some(named(&answer, kind)?.0)).collect();
    // To look at every process takes long; it is done only if somebody's life depends on it.
    let (known, alive) = (pods.all(), LazyCell::new(|| processes.pods()));
    let lives = |pod: &PodUid| known.contains_key(pod) || alive.contains_key(pod);
    let kept = kept(&all, &named, &lives);
    let mut removed = 0;
    for record in all.iter().filter(|record| !kept.contains(record.name.as_str())) {
        // The spec first: a record without a spec is written anew, a spec without a record is not.
        let gone = specs.remove(&format!("{STEM}{}", record.name)).is_ok()
            && records.remove(&record.name).is_ok();
        if gone {
            removed += 1;
            tracing::info!(pod = record.pod_name, container = %record.container, name = record.name, "collected");
        }
    }
    for stem in stems {
        let name = stem.strip_prefix(STEM).unwrap_or_default();
        let recorded = all.iter().any(|record| record.name == name);
        if !recorded && !named.contains(name) && specs.remove(&stem).unwrap_or(false) {
            removed += 1;
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use model::ContainerName;
    use model::codec::decode_placement;

    use super::*;

    #[test]
    fn only_what_neither_kubelet_nor_processes_know_goes() {
        let record = |name: &str, pod: &str| Record {
            name: name.into(),
            pod: PodUid::parse(pod).unwrap(),
            pod_name: pod.into(),
            container: ContainerName::parse("main").unwrap(),
            placement: decode_placement("v1;n1;main=GPU-1:whole").unwrap(),
        };
        let records =
            [record("a", "gone"), record("b", "alive"), record("c", "gone"), record("d", "gone")];
        let named = ["c".to_owned()].into();
        let alive = |pod: &PodUid| pod.as_str() == "alive";
        assert_eq!(kept(&records, &named, &alive), ["b", "c"].into());
    }
}
