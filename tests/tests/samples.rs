//! Story: people bring the pods of their old system, and each is placed as its author says.

use std::collections::BTreeMap;
use std::sync::Arc;

use dialect::Settings;
use model::arb::{card, container_name, device_id, node_name};
use model::codec::encode_placement;
use model::{Container, Device, Inventory, Mebibytes, PolicyName, Role};
use placement::Policy;
use stories::samples::{cluster, sample};
use stories::worlds::pod;
use stories::{Cluster, Outcome, Running};

fn runs(outcome: Outcome) -> Box<Running> {
    match outcome {
        Outcome::Runs(running) => running,
        other => panic!("{other:?}"),
    }
}

fn annotations(running: &Running) -> BTreeMap<&str, &str> {
    let all = running.written.annotations.iter();
    all.map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

#[test]
fn nano_gpu_s_twenty_percent() {
    let running = runs(cluster().submit(&sample("nano-percent")));
    let expected = [
        ("nano-gpu/assume", "true"),
        // The device node, not the place in the driver's order.
        ("nano-gpu/container-cuda", "3"),
        ("nano-gpu/placement", "v1;a100-node;cuda=GPU-a1-0:20%+8192Mi"),
    ];
    assert_eq!(annotations(&running), expected.into());
    assert_eq!(running.written.labels["nano-gpu/assume"], "true");
}

#[test]
fn gpu_manager_s_half_card_and_two_cards() {
    let mut cluster = cluster();
    let running = runs(cluster.submit(&sample("vcuda-share")));
    let request = &running.asked.request.containers[0];
    assert_eq!(request.burst, Some(model::Cores(50)));
    let expected = [
        ("nano-gpu/placement", "v1;a100-node;nvidia=GPU-a1-0:50%+7680Mi"),
        ("tencent.com/gpu-assigned", "false"),
        ("tencent.com/predicate-gpu-idx-0", "3"),
        ("tencent.com/predicate-node", "a100-node"),
        ("tencent.com/predicate-time", "1700000000000000001"),
    ];
    assert_eq!(annotations(&running), expected.into());
    let running = runs(cluster.submit(&sample("vcuda-whole")));
    assert_eq!(annotations(&running)["tencent.com/predicate-gpu-idx-0"], "2,1");
}

#[test]
fn gpushare_s_three_pods_share_one_card_and_a_large_one_waits() {
    let mut cluster = cluster();
    cluster.policy = Policy::both(PolicyName::Binpack);
    for name in ["gpushare-1", "gpushare-2", "gpushare-3"] {
        let running = runs(cluster.submit(&sample(name)));
        let expected = [
            ("ALIYUN_COM_GPU_MEM_ASSIGNED", "false"),
            ("ALIYUN_COM_GPU_MEM_DEV", "40"),
            ("ALIYUN_COM_GPU_MEM_IDX", "3"),
            ("ALIYUN_COM_GPU_MEM_POD", "2"),
        ];
        for (key, value) in expected {
            assert_eq!(annotations(&running)[key], value, "{name}");
        }
    }
    let Outcome::Waits(why) = cluster.submit(&sample("gpushare-too-big")) else { panic!() };
    assert_eq!(why, "2 nodes: 2 have no card of 49,152 MiB");
}

#[test]
fn gpu_admission_s_two_containers_of_one_type() {
    let running = runs(cluster().submit(&sample("gpu-admission")));
    let got = annotations(&running);
    // gpu-admission counts the driver's order.
    assert_eq!(got["nvidia.com/predicate-gpu-idx-0"], "0");
    assert_eq!(got["nvidia.com/predicate-gpu-idx-1"], "0");
    assert_eq!(got["nvidia.com/predicate-node"], "a100-node");
    assert_eq!(running.written.labels["tydic.io/bind-phase"], "allocating");
}

#[test]
fn gpu_admission_s_own_test_in_sequence() {
    // Name, containers, node, the cards of each.
    type Row = (&'static str, &'static [(u64, u64)], &'static str, &'static [&'static str]);
    // Three nodes of two cards with four units of memory each; pods come one after the other.
    let policy = Policy::both(PolicyName::Binpack);
    let mut cluster = Cluster::new(Settings::default(), policy);
    for node in ["testnode0", "testnode1", "testnode2"] {
        let device = |index| {
            Arc::new(Device {
                id: device_id(&format!("{node}-{index}")),
                memory: Mebibytes(4 * 256),
                ..card(index)
            })
        };
        let inventory = Inventory { devices: vec![device(0), device(1)], links: Vec::new() };
        cluster.node(&node_name(node), &inventory);
    }
    let submit = |cluster: &mut Cluster, name: &str, sizes: &[(u64, u64)]| {
        let containers = sizes.iter().enumerate().map(|(position, (core, memory))| Container {
            name: container_name(&format!("c{position}")),
            role: Role::App,
            position,
            limits: [("tencent.com/vcuda-core", core), ("tencent.com/vcuda-memory", memory)]
                .map(|(key, value)| (key.to_owned(), value.to_string()))
                .into(),
            requests: BTreeMap::new(),
        });
        cluster.submit(&pod(name, containers.collect(), BTreeMap::new()))
    };
    let table: [Row; 4] = [
        ("pod-0", &[(10, 1), (10, 1)], "testnode0", &["0", "0"]),
        ("pod-1", &[(100, 3), (80, 3)], "testnode1", &["0", "1"]),
        ("pod-2", &[(200, 10), (0, 0)], "testnode2", &["0,1"]),
        ("pod-3", &[(10, 2), (0, 0)], "testnode0", &["0"]),
    ];
    for (name, sizes, node, indexes) in table {
        let running = runs(submit(&mut cluster, name, sizes));
        assert_eq!(running.placement.node().as_str(), node, "{name}");
        for (i, index) in indexes.iter().enumerate() {
            let key = format!("tencent.com/predicate-gpu-idx-{i}");
            assert_eq!(running.written.annotations[&key], *index, "{name}");
        }
    }
    // The original cut 150 to one card; ours refuses it. Written as the 100 it became, it takes
    // the last free card, and then 99 of 4 units fit nowhere.
    assert!(matches!(submit(&mut cluster, "pod-4", &[(150, 1)]), Outcome::Refused(_)));
    let running = runs(submit(&mut cluster, "pod-4", &[(100, 1)]));
    assert_eq!(running.written.annotations["tencent.com/predicate-gpu-idx-0"], "1");
    let Outcome::Waits(why) = submit(&mut cluster, "pod-5", &[(99, 4)]) else { panic!() };
    assert_eq!(why, "3 nodes: 3 short of compute on one card, best has 70% of 99%");
}

#[test]
fn wrong_pods_are_told_in_one_sentence() {
    let table = [
        (
            "wrong-150",
            "container nvidia: tencent.com/vcuda-core is 150; it must be 1 to 99 for a part of a \
             card, or a multiple of 100 for whole cards",
        ),
        (
            "wrong-two-dialects",
            "the pod asks for both nano-gpu/gpu-percent and aliyun.com/gpu-mem; all containers of \
             a pod must use the names of one system",
        ),
    ];
    for (name, expected) in table {
        let Outcome::Refused(sentence) = cluster().submit(&sample(name)) else { panic!("{name}") };
        assert_eq!(sentence, expected);
    }
    let Outcome::Refused(sentence) = cluster().submit(&sample("wrong-10g")) else { panic!() };
    assert!(sentence.starts_with("container binpack: aliyun.com/gpu-mem is \"10G\""), "{sentence}");
    assert!(sentence.ends_with("write 10 for 10 GiB"), "{sentence}");
    let Outcome::Waits(why) = cluster().submit(&sample("wrong-model")) else { panic!() };
    assert_eq!(why, "2 nodes: 2 have no H200");
}

#[test]
fn every_sample_that_is_right_runs() {
    let mut cluster = cluster();
    for (name, _) in stories::samples::SAMPLES {
        if name.starts_with("wrong-") || *name == "gpushare-too-big" {
            continue;
        }
        let running = runs(cluster.submit(&sample(name)));
        assert!(encode_placement(&running.placement).starts_with("v1;"), "{name}");
    }
}
