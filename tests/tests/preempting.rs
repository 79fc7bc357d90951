//! Room that is made by evicting pods is room in the ledger too.
//!
//! Random worlds in which every dialect meets. A pod that finds no room may have others evicted:
//! they are first seen leaving, then they are gone, and then the pod runs.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use dialect::{Settings, read};
use ledger::{Event, Quota};
use model::{NodeName, Pod, PodUid, Request, Snapshot, names};
use placement::{Ask, Budget, NoPreemption, Policy, Preemption, decide, fit, preempt};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use stories::worlds::{Change, Happening, happenings, nodes, quotas};
use stories::{Cluster, Outcome};

/// What a pod is given beside what the worlds give it: a priority and another namespace.
type Station = (i32, bool);

fn runner(cases: u32) -> TestRunner {
    let given = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    TestRunner::new(Config {
        cases: given.unwrap_or(cases),
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    })
}

/// A cluster in which this much has happened, and the pods that found no room.
fn cluster(
    nodes: &[(NodeName, model::Inventory)],
    quota: Option<&str>,
    happenings: Vec<(Happening, Station)>,
) -> (Cluster, Vec<Pod>) {
    let mut cluster = Cluster::new(Settings::all_dialects(), Policy::default());
    for (name, inventory) in nodes {
        cluster.node(name, inventory);
    }
    let quota = quota.map(|text| Quota::from_json(text).expect("a quota")).unwrap_or_default();
    cluster.ledger.apply(Event::Quota(quota));
    let mut waiting = Vec::new();
    for (happening, (priority, elsewhere)) in happenings {
        let uid = |n: usize| cluster.pods.keys().nth(n % cluster.pods.len().max(1)).cloned();
        let node = |n: usize| cluster.nodes.keys().nth(n % cluster.nodes.len().max(1)).cloned();
        match happening {
            Happening::Submit(mut pod) if !cluster.pods.contains_key(&pod.id.uid) => {
                pod.priority = priority;
                if elsewhere {
                    pod.id.namespace = "team-b".into();
                }
                if let Outcome::Waits(_) = cluster.submit(&pod) {
                    waiting.push(pod);
                }
            }
            Happening::Terminate(which) => {
                if let Some(uid) = uid(which) {
                    leave(&mut cluster, &uid);
                }
            }
            Happening::Odd(which) => {
                if let Some(name) = node(which) {
                    let mut pod = stories::worlds::pod("odd", Vec::new(), BTreeMap::new());
                    pod.annotations.insert(names::PLACEMENT.into(), "v9;new".into());
                    pod.node = Some(name);
                    cluster.see(&pod);
                }
            }
            Happening::Node(which, change) => {
                if let Some(mut facts) = node(which).map(|name| cluster.nodes[&name].clone()) {
                    match change {
                        Change::Cards(inventory) => facts.inventory = Some(Ok(inventory)),
                        Change::FewTickets(total) => {
                            facts.tickets.values_mut().for_each(|tickets| *tickets = total);
                        }
                        Change::Cpus(cpus) => facts.allocatable.cpu = model::MilliCpu(cpus * 1000),
                        Change::Pool(pool) => facts.pool = pool,
                        Change::Broken | Change::Gone => {}
                    }
                    cluster.change(facts);
                }
            }
            _ => {}
        }
    }
    (cluster, waiting)
}

/// A pod is being deleted.
fn leave(cluster: &mut Cluster, uid: &PodUid) {
    let mut pod = cluster.pods[uid].clone();
    pod.terminating = true;
    cluster.see(&pod);
}

fn worlds() -> impl Strategy<Value = (Cluster, Vec<Pod>)> {
    let stations = vec((0i32..4, proptest::bool::weighted(0.3)), 32);
    (nodes(), quotas(), happenings(32), stations).prop_map(
        |(nodes, quota, happenings, stations)| {
            cluster(&nodes, quota, happenings.into_iter().zip(stations).collect())
        },
    )
}

#[test]
fn a_node_without_some_pods_is_what_the_ledger_shows_once_they_are_gone() {
    let masks = vec(any::<bool>(), 32);
    let result = runner(1500).run(&(worlds(), masks), |((mut cluster, _), mask)| {
        let before = cluster.ledger.snapshot();
        let gone: BTreeSet<PodUid> = cluster
            .pods
            .keys()
            .zip(&mask)
            .filter(|(_, goes)| **goes)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in &gone {
            cluster.end(uid);
        }
        let after = cluster.ledger.snapshot();
        prop_assert_eq!(before.nodes().len(), after.nodes().len());
        for (before, after) in before.nodes().iter().zip(after.nodes()) {
            prop_assert_eq!(&before.without(&gone), after.as_ref());
            prop_assert_eq!(&before.without(&BTreeSet::new()), before.as_ref());
        }
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[test]
fn a_pod_runs_once_its_victims_are_gone() {
    let preempted = Cell::new(0u32);
    let result = runner(1500).run(&worlds(), |(mut cluster, waiting)| {
        for mut pod in waiting {
            pod.priority += 1;
            let Ok(Some(asked)) = read(&pod, &cluster.settings) else { continue };
            let before = cluster.ledger.snapshot();
            let budgets = [budget(&before)];
            let ask = Ask::new(&before, &asked.request, cluster.policy);
            let found = match preempt(&before, &ask, &budgets) {
                Ok(found) => found,
                Err(NoPreemption::Fits { .. }) => {
                    prop_assert!(decide(&before, &ask).is_ok());
                    continue;
                }
                Err(_) => continue,
            };
            victims_are_right(&before, &asked.request, &found, &budgets[0])?;
            for victim in &found.victims {
                leave(&mut cluster, &victim.pod.uid);
            }
            let leaving = cluster.ledger.snapshot();
            let ask = Ask::new(&leaving, &asked.request, cluster.policy);
            // Nobody else is evicted while they are on their way out.
            let again = preempt(&leaving, &ask, &budgets);
            prop_assert!(matches!(again, Err(NoPreemption::Waiting { .. })), "{:?}", again);
            let gone = cluster.pods.values().filter(|pod| pod.terminating);
            let gone: Vec<PodUid> = gone.map(|pod| pod.id.uid.clone()).collect();
            for uid in &gone {
                cluster.end(uid);
            }
            let after = cluster.ledger.snapshot();
            let node = after.node(&found.node).expect("the node is still there");
            let ask = Ask::new(&after, &asked.request, cluster.policy);
            prop_assert!(fit(node, &ask).is_ok(), "{found}: {:?}", fit(node, &ask));
            let outcome = cluster.submit(&pod);
            prop_assert!(matches!(outcome, Outcome::Runs(_)), "{:?}", outcome);
            preempted.set(preempted.get() + 1);
        }
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    println!("pods that ran in the place of others: {}", preempted.get());
    assert!(preempted.get() > 100, "these worlds must be full");
}

/// A budget over the pods of one priority, of which two may go.
fn budget(snapshot: &Snapshot) -> Budget {
    let pods = snapshot.nodes().iter().flat_map(|node| &node.holders);
    let protected = pods.filter(|holder| holder.priority == 1);
    Budget { pods: protected.map(|holder| holder.pod.uid.clone()).collect(), allowed: 2 }
}

fn victims_are_right(
    snapshot: &Snapshot,
    request: &Request,
    found: &Preemption,
    budget: &Budget,
) -> Result<(), TestCaseError> {
    prop_assert!(!found.victims.is_empty());
    let protected = found.victims.iter().filter(|victim| budget.pods.contains(&victim.pod.uid));
    prop_assert!(protected.count() <= budget.allowed as usize);
    let node = snapshot.node(&found.node).expect("a node of the snapshot");
    for victim in &found.victims {
        prop_assert!(victim.priority < request.priority && !victim.terminating);
        prop_assert!(node.holders.contains(victim));
    }
    Ok(())
}
