//! gpu-admission's users call a verb that has no bind: filter decides and writes it down.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::bed::{Bed, CONFIG, annotation, asks, node_of};

/// As gpu-admission's own README has it, in today's words.
const PREDICATES: &str = "
profiles: [{schedulerName: gpu-scheduler}, {schedulerName: nanogpu}]
extenders:
- urlPrefix: http://127.0.0.1:39999/scheduler
  filterVerb: predicates
  nodeCacheCapable: false
  ignorable: false
  httpTimeout: 15s
  managedResources: [{name: tencent.com/vcuda-core}, {name: tencent.com/vcuda-memory, ignoredByScheduler: true}]
";

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_in_filter_is_on_the_pod_before_it_is_bound() -> Result<()> {
    let bed = Bed::new().await?;
    let _scheduler = bed.scheduler().await?;
    bed.cluster.configure_scheduler("kube-scheduler", PREDICATES)?;
    let outcome = decisions(&bed).await;
    bed.cluster.configure_scheduler("kube-scheduler", CONFIG)?;
    outcome
}

async fn decisions(bed: &Bed) -> Result<()> {
    let namespace = bed.session.namespace("predicates").await?;
    for n in 0..6 {
        let name = format!("p{n}");
        let limits = json!({"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "30"});
        bed.create(&namespace, &asks(&name, &limits)).await?;
        let bound = bed.bound(&namespace, &name).await?;
        let placement = annotation(&bound, "nano-gpu/placement").context("no placement")?;
        let node = node_of(&bound).context("bound")?;
        ensure!(placement.starts_with(&format!("v1;{node}@")), "{placement} on {node}");
        ensure!(annotation(&bound, "tencent.com/predicate-node") == Some(node));
    }
    ensure!(bed.nothing_sold_twice().await? == 6);
    Ok(())
}
