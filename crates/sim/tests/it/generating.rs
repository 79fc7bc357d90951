//! Made-up traces: the same for a seed, as documented, and read back as they were made.

use std::collections::BTreeSet;

use model::{Affinity, Near, Node};
use sim::generate::Made;
use sim::trace;
use sim::trace::Class;

use crate::build::{path, printed};

#[test]
fn a_made_up_trace_is_read_back_as_it_was_made() {
    let folder = path("made");
    let out = folder.to_str().unwrap();
    let make = |seed: &str| {
        printed(&["generate", "--nodes", "30", "--pods", "300", "--seed", seed, "--out", out]);
        ["nodes.csv", "pods.csv"].map(|name| std::fs::read_to_string(folder.join(name)).unwrap())
    };
    assert_ne!(make("8"), make("7"));
    assert_eq!(make("7"), make("7"));
    let scene = Made::new(30, 300, 7).scene("made").unwrap();
    assert_eq!(trace::nodes(&folder.join("nodes.csv")).unwrap(), scene.nodes);
    assert_eq!(trace::pods(&folder.join("pods.csv")).unwrap(), scene.pods);
    // And it can be replayed as the hint says.
    let (nodes, pods) = (format!("{out}/nodes.csv"), format!("{out}/pods.csv"));
    let table = printed(&["replay", "--nodes", &nodes, "--pods", &pods, "--seeds", "1"]);
    assert!(table.starts_with("pods: 300 pods on 30 nodes"), "{table}");
}

#[test]
fn pods_are_as_documented() {
    let made = Made::new(100, 20_000, 1);
    let scene = made.scene("made").unwrap();
    let percent = |count: usize| count * 100 / made.pods.len();
    let of = |class| percent(scene.pods.iter().filter(|pod| pod.class == class).count());
    // Applications with several cards have one replica, so among pods they are fewer.
    assert!((14..=18).contains(&of(Class::CpuOnly)), "{}", of(Class::CpuOnly));
    assert!((44..=51).contains(&of(Class::Share)), "{}", of(Class::Share));
    assert!((32..=39).contains(&of(Class::OneCard)), "{}", of(Class::OneCard));
    let several = scene.pods.iter().filter(|pod| pod.class == Class::SeveralCards).count();
    assert!((200..=600).contains(&several), "{several}");
    let bound = percent(scene.pods.iter().filter(|pod| pod.is_type_bound()).count());
    assert!((13..=21).contains(&bound), "{bound}");
    // Memory does not follow compute: each share comes with most of the amounts.
    let shares = || made.pods.iter().filter(|row| row.gpu_mem_mib.is_some());
    let half: BTreeSet<_> =
        shares().filter(|r| r.gpu_milli == 500).map(|r| r.gpu_mem_mib).collect();
    assert!(half.len() > 7, "{half:?}");
    assert!(made.pods.is_sorted_by_key(|row| row.creation_time));
    assert!(made.pods.iter().all(|row| row.creation_time <= row.deletion_time));
}

#[test]
fn every_pod_fits_some_empty_node_that_it_names() {
    let made = Made::new(100, 5_000, 2);
    let models: BTreeSet<&str> = made.nodes.iter().map(|row| row.model.as_str()).collect();
    for one in &models {
        // A token selects every model it stands in.
        assert_eq!(models.iter().filter(|other| other.contains(one)).count(), 1, "{one}");
    }
    for pod in &made.pods {
        let fits = made.nodes.iter().any(|node| {
            let named = pod.gpu_spec.is_empty() || pod.gpu_spec.split('|').any(|m| m == node.model);
            named
                && pod.num_gpu <= node.gpu
                && pod.gpu_mem_mib <= node.card_mem_mib
                && pod.cpu_milli <= node.cpu_milli
                && pod.memory_mib <= node.memory_mib
        });
        assert!(fits, "{pod:?}");
    }
}

#[test]
fn wired_machines_and_wishes_are_as_documented() {
    let made = Made::wired(200, 20_000, 3);
    let scene = made.scene("made").unwrap();
    assert!(scene.nodes.iter().all(|node| node.topology.count() == node.devices.len()));
    assert!(scene.nodes.iter().any(|node| node.topology.most(Near::Link) == 8));
    let several = || made.pods.iter().filter(|row| row.num_gpu > 1);
    let wish =
        |wish: &str| several().filter(|row| row.topology == wish).count() * 100 / several().count();
    // No machine has eight cards on one NUMA node, so a few wishes were dropped.
    let shares = ["", "link", "numa", "link-strict", "numa-strict"].map(wish);
    let within = |expected: usize, got: usize| got.abs_diff(expected) <= 3;
    let expected = [41, 25, 10, 15, 8];
    assert!(expected.iter().zip(shares).all(|(e, got)| within(*e, got)), "{shares:?}");
    assert!(made.pods.iter().all(|row| row.num_gpu > 1 || row.topology.is_empty()));
    // What is required some empty node has.
    for pod in &scene.pods {
        let Affinity::Require(near) = pod.request.affinity else { continue };
        let container = &pod.request.containers[0];
        let serves = |node: &Node| {
            node.topology.most(near) >= container.cards
                && node.free.cpu >= pod.request.host.cpu
                && pod.request.selector.admits(&node.devices[0].device)
        };
        assert!(scene.nodes.iter().any(serves), "{:?}", pod.request);
    }
}
