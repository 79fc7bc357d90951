//! gpushare: one card for the pod, in the cluster's unit.

use dialect::{MemoryUnit, Settings};
use model::Role::{App, Init};
use model::{Device, Mebibytes, Placement};

use crate::common::{Draft, cards, env, map, place, pod, share, write};
use crate::writing::written;

const MEM: &str = "aliyun.com/gpu-mem";

/// 3 before the work, then 2 and 4 at once.
fn draft() -> Draft {
    pod()
        .init("fetch", &[(MEM, "3")])
        .app("main", &[(MEM, "2")])
        .app("idle", &[])
        .app("more", &[(MEM, "4")])
}

fn placement() -> Placement {
    place(&[
        ("fetch", Init, &[share(1, 0, 3072)]),
        ("main", App, &[share(1, 0, 2048)]),
        ("more", App, &[share(1, 0, 4096)]),
    ])
}

#[test]
fn the_pod_s_card_and_sums_are_written() {
    let written = written(&draft(), &placement());
    let annotations = map(&[
        (
            "nano-gpu/placement",
            "v1;gpu-1;init:fetch=GPU-1:0%+3072Mi;main=GPU-1:0%+2048Mi;more=GPU-1:0%+4096Mi",
        ),
        ("ALIYUN_COM_GPU_MEM_IDX", "6"),
        ("ALIYUN_COM_GPU_MEM_DEV", "16"),
        ("ALIYUN_COM_GPU_MEM_POD", "6"),
        ("ALIYUN_COM_GPU_MEM_ASSIGNED", "false"),
        ("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "1780000000123456789"),
    ]);
    assert_eq!((written.annotations, written.labels), (annotations, map(&[])));
}

#[test]
fn containers_learn_the_pod_s_card_and_their_own_part() {
    let of = |name| env(&draft(), name, &placement(), &cards());
    let expected = |own| {
        map(&[
            ("ALIYUN_COM_GPU_MEM_IDX", "6"),
            ("ALIYUN_COM_GPU_MEM_POD", "6"),
            ("ALIYUN_COM_GPU_MEM_CONTAINER", own),
            ("ALIYUN_COM_GPU_MEM_DEV", "16"),
        ])
    };
    assert_eq!(of("main"), expected("2"));
    assert_eq!(of("more"), expected("4"));
    assert_eq!(of("fetch"), expected("3"));
    // A container without a card learns nothing.
    assert_eq!(of("idle"), map(&[]));
}

#[test]
fn an_odd_card_rounds_down_and_mebibytes_are_exact() {
    let odd: Vec<Device> =
        cards().into_iter().map(|card| Device { memory: Mebibytes(16276), ..card }).collect();
    let size = |unit| {
        let settings = Settings { gpushare_unit: unit, ..Settings::all_dialects() };
        let written = write(&draft(), &placement(), &odd, &settings).unwrap();
        written.annotations["ALIYUN_COM_GPU_MEM_DEV"].clone()
    };
    assert_eq!(size(MemoryUnit::Gibibytes), "15");
    assert_eq!(size(MemoryUnit::Mebibytes), "16276");
}
