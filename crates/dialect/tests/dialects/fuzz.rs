//! Whatever a pod says, nothing panics, and what is written is valid and comes back.
//! Bounded here; `cargo xtask soak fuzz` goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use dialect::{Asked, Dialect, Settings, observe, read, write};
use model::Role::App;
use model::{Claim, Device, DeviceId, Placement, Pod};

use crate::common::{Amounts, BEFORE, NOW, cards, place_asked, pod, taken_over};
use crate::examples::share_of;
use crate::kubernetes::accepts;

/// Annotations as the dialect's original writes them, or as its users do.
fn annotations(dialect: Dialect) -> Amounts<'static> {
    match dialect {
        Dialect::Nano => &[
            ("nano-gpu/assume", "true"),
            ("nano-gpu/container-main", "1"),
            ("nano-gpu/container-more", "-1"),
            ("nano-gpu/placement", "v1;gpu-1;main=GPU-1:20%+3276Mi"),
        ],
        Dialect::NanoIo => &[
            ("nano-gpu.io/gpu", "true"),
            ("nano-gpu.io/gpu-main", "1"),
            ("nano-gpu.io/gpu-more", "2"),
        ],
        Dialect::Elastic | Dialect::ElasticCom => &[
            ("elasticgpu.io/assumed", "true"),
            ("elasticgpu.io/container-main", "0,1"),
            ("elasticgpu.io/container-more", "2"),
        ],
        Dialect::Tencent => &[
            ("tencent.com/predicate-time", "1700000000000000000"),
            ("tencent.com/predicate-gpu-idx-0", "0"),
            ("tencent.com/predicate-gpu-idx-1", "0,1"),
            ("tencent.com/vcuda-core-limit", "80"),
        ],
        Dialect::Inspur => &[
            ("inspur.com/predicate-gpu-idx-0", "0"),
            ("inspur.com/predicate-gpu-idx-1", "0,1"),
            ("inspur.com/vcuda-core-limit", "80"),
        ],
        Dialect::NvidiaVcuda => &[
            ("nvidia.com/predicate-gpu-idx-0", "0"),
            ("nvidia.com/predicate-gpu-idx-1", "0,1"),
            ("nvidia.com/vcuda-core-limit", "80"),
            ("nvidia.com/use-gputype", "A100,T4"),
            ("nvidia.com/nouse-gputype", "H100"),
        ],
        Dialect::Gpushare => &[
            ("ALIYUN_COM_GPU_MEM_IDX", "1"),
            ("scheduler.framework.gpushare.allocation", r#"{"0":{"1":2},"1":{"0":2,"1":2}}"#),
        ],
        Dialect::Hami => &[
            (
                "hami.io/vgpu-devices-allocated",
                "GPU-1,NVIDIA,2048,20:;GPU-1,NVIDIA,16384,100:GPU-2,NVIDIA,1,0:;;",
            ),
            ("hami.io/gpu-scheduler-policy", "binpack,numa"),
        ],
        Dialect::VgpuManager => &[
            (
                "nvidia.com/pre-allocated",
                "fetch[0_GPU-0_5_512];main[1_GPU-1_20_2048,2_GPU-2_20_2048];more[1_GPU-1_20_2048]",
            ),
            ("nvidia.com/real-allocated", "main[1_GPU-1_20_2048]"),
            ("nvidia.com/include-gpu-uuid", "GPU-1,GPU-2"),
            ("nvidia.com/vgpu-compute-policy", "balance"),
        ],
    }
}

/// Values that mean something to some reader.
const PITHY: [&str; 14] = [
    "",
    "0",
    "1",
    "-1",
    "50",
    "100",
    "101",
    "150",
    "200",
    "6400",
    "10G",
    "500m",
    ",",
    "1000000000000000000",
];

/// One value spoilt: which, how, where, and with what.
type Spoiling = (u8, u8, u8, Vec<u8>);

fn spoil(values: &mut [&mut String], (which, how, at, noise): &Spoiling) {
    let Some(which) = usize::from(*which).checked_rem(values.len()) else { return };
    let value = &mut *values[which];
    let noise = String::from_utf8_lossy(noise);
    let at = usize::from(*at) % (value.len() + 1);
    let (before, after) = (value.get(..at).unwrap_or(""), value.get(at..).unwrap_or(""));
    *value = match how % 4 {
        0 => noise.into_owned(),
        1 => format!("{before}{noise}{after}"),
        2 => format!("{before}{}", after.get(1..).unwrap_or("")),
        _ => PITHY[at % PITHY.len()].to_owned(),
    };
}

/// A bound pod of `dialect`, with these of its values spoilt.
fn spoilt(dialect: Dialect, long: bool, spoilings: &[Spoiling]) -> Pod {
    let share = share_of(dialect);
    let idle = if long { "n".repeat(63) } else { "idle".to_owned() };
    let draft = pod().init("fetch", share).app("main", share).app("more", share).app(&idle, &[]);
    let mut pod = draft.annotate_all(annotations(dialect)).bound(BEFORE).build();
    let limits = pod.containers.iter_mut().flat_map(|container| container.limits.values_mut());
    let mut values: Vec<&mut String> = limits.chain(pod.annotations.values_mut()).collect();
    for spoiling in spoilings {
        spoil(&mut values, spoiling);
    }
    pod
}

fn written(asked: &Asked, pod: &Pod, placement: &Placement) -> BTreeMap<String, String> {
    let (cards, settings) = (cards(), Settings::all_dialects());
    let lookup = |id: &DeviceId| cards.iter().find(|card| card.id == *id);
    let written = write(asked, pod, placement, &lookup, &settings, NOW).expect("room");
    accepts(&written);
    for container in &pod.containers {
        dialect::env(asked, pod, container, placement, &lookup, &settings, "1a2b3c4d");
    }
    written.annotations
}

/// The cards of the pod's work, as `claim` points at them.
fn cards_of(claim: Claim) -> Vec<DeviceId> {
    let Claim::Shares(claimed) = claim else { panic!("{claim:?}") };
    let work = claimed.into_iter().filter(|claimed| claimed.role == App);
    let references = work.flat_map(|claimed| claimed.parts).map(|(reference, _)| reference);
    let find = |reference: model::DeviceRef| -> Device {
        cards().into_iter().find(|card| reference.is(card)).expect("a card of the node")
    };
    references.map(|reference| find(reference).id).collect()
}

fn check(dialect: Dialect, mut pod: Pod) {
    let settings = taken_over();
    let _ = observe(&pod, &settings).expect("a holder");
    let asked = match read(&pod, &settings) {
        Ok(Some(asked)) => asked,
        Ok(None) => return,
        Err(refusal) => {
            let sentence = refusal.to_string();
            assert!(sentence.len() < 2000 && !sentence.contains('\n'), "{sentence}");
            return;
        }
    };
    assert_eq!(asked.dialect, dialect);
    let placement = place_asked(&asked, &cards());
    let mut annotations = written(&asked, &pod, &placement);
    pod.annotations.append(&mut annotations.clone());
    assert_eq!(observe(&pod, &settings).expect("a holder").claim, Claim::of(&placement));
    // The dialect's own keys tell the same, unless older ones of its system stand beside them.
    annotations.remove(model::names::PLACEMENT);
    pod.annotations = annotations;
    let told = cards_of(observe(&pod, &settings).expect("a holder").claim);
    assert_eq!(told, cards_of(Claim::of(&placement)));
}

/// Runs `dialect` on random pods, for a few thousand of them or for as long as soak says.
fn on_pods(dialect: Dialect) {
    let seconds = std::env::var("NANOGPU_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let target = bolero::check!().with_type::<(bool, Vec<Spoiling>)>();
    let target = match seconds {
        Some(seconds) => target.with_test_time(Duration::from_secs(seconds)),
        None => target.with_iterations(5_000),
    };
    target.for_each(|(long, spoilings)| {
        check(dialect, spoilt(dialect, *long, spoilings));
        // A single fault goes deeper than many.
        check(dialect, spoilt(dialect, *long, spoilings.get(..1).unwrap_or_default()));
    });
}

macro_rules! targets {
    ($($name:ident: $dialect:ident,)*) => {
        $(#[test]
        fn $name() {
            on_pods(Dialect::$dialect);
        })*

        #[test]
        fn every_dialect_has_a_fuzz_target() {
            assert_eq!([$(Dialect::$dialect),*], Dialect::ALL);
        }
    };
}
targets! {
    fuzz_nano: Nano,
    fuzz_nano_io: NanoIo,
    fuzz_elastic: Elastic,
    fuzz_elastic_com: ElasticCom,
    fuzz_tencent: Tencent,
    fuzz_inspur: Inspur,
    fuzz_nvidia_vcuda: NvidiaVcuda,
    fuzz_gpushare: Gpushare,
    fuzz_hami: Hami,
    fuzz_vgpu_manager: VgpuManager,
}
