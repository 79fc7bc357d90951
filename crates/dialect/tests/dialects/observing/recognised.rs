//! Pods exactly as the systems of before left them.

use dialect::{MemoryUnit, Settings};
use model::Claim;
use model::Part::Whole;
use model::Role::{App, Init, Sidecar};

use crate::common::{BEFORE, claim, part, percent, pod, taken_over};
use crate::observing::{holds, id, index, main, minor, one};

#[test]
fn nano_gpu_left_a_device_node_for_each_container() {
    let draft = pod()
        .app("main", &[("nano-gpu/gpu-percent", "20")])
        .app("idle", &[])
        .app("more", &[("nano-gpu/gpu-percent", "40")])
        .annotate_all(&[
            ("nano-gpu/assume", "true"),
            ("nano-gpu/container-main", "1"),
            ("nano-gpu/container-idle", "-1"),
            ("nano-gpu/container-more", "0"),
        ])
        .bound(BEFORE);
    let expected = vec![
        holds(App, &[(minor(1), percent(1, 20, 20).1)]),
        holds(App, &[(minor(0), percent(1, 40, 40).1)]),
    ];
    assert_eq!(claim(&draft), Claim::Shares(expected));
}

#[test]
fn nano_gpu_s_agent_once_used_another_name() {
    let draft = main(&[("nano-gpu/gpu-percent", "20")]);
    let draft =
        draft.annotate_all(&[("elastic-gpu/assume", "true"), ("elastic-gpu/container-main", "3")]);
    assert_eq!(claim(&draft), one(&[(minor(3), percent(1, 20, 20).1)]));
}

#[test]
fn nano_gpu_s_first_form() {
    let draft = main(&[("nano-gpu.io/gpu-core", "50"), ("nano-gpu.io/gpu-memory", "7")])
        .annotate_all(&[("nano-gpu.io/gpu", "true"), ("nano-gpu.io/gpu-main", "2")]);
    assert_eq!(claim(&draft), one(&[(minor(2), part(50, 7168))]));
}

#[test]
fn elastic_gpu_left_lists_of_cards() {
    for domain in ["elasticgpu.io", "elasticgpu.com"] {
        let (core, memory) = (format!("{domain}/gpu-core"), format!("{domain}/gpu-memory"));
        let left = |limits: &[(&str, &str)], cards: &str| {
            let draft = main(limits).annotate("elasticgpu.io/assumed", "true");
            claim(&draft.annotate("elasticgpu.io/container-main", cards))
        };
        let whole = one(&[(minor(1), Whole), (minor(2), Whole)]);
        assert_eq!(left(&[(&core, "200")], "1,2"), whole);
        assert_eq!(left(&[(&memory, "256")], "0"), one(&[(minor(0), part(0, 256))]));
        let share = one(&[(minor(0), part(30, 512))]);
        assert_eq!(left(&[(&core, "30"), (&memory, "512")], "0"), share);
    }
}

#[test]
fn gpu_manager_left_device_nodes_by_position() {
    for domain in ["tencent.com", "inspur.com"] {
        let name = |name: &str| format!("{domain}/{name}");
        let (core, memory) = (name("vcuda-core"), name("vcuda-memory"));
        let draft = pod()
            .init("fetch", &[(&core, "50"), (&memory, "1")])
            .app("main", &[(&core, "50"), (&memory, "30")])
            .app("idle", &[])
            .app("pair", &[(&core, "200"), (&memory, "60")])
            .annotate_all(&[
                (&name("predicate-time"), "1700000000000000000"),
                (&name("predicate-node"), "gpu-1"),
                (&name("gpu-assigned"), "true"),
                (&name("predicate-gpu-idx-0"), "3"),
                (&name("predicate-gpu-idx-2"), "0,1"),
            ])
            .bound(BEFORE);
        // It gave init containers nothing.
        let expected = vec![
            holds(App, &[(minor(3), part(50, 7680))]),
            holds(App, &[(minor(0), Whole), (minor(1), Whole)]),
        ];
        assert_eq!(claim(&draft), Claim::Shares(expected), "{domain}");
    }
}

#[test]
fn gpu_manager_annotated_pods_that_no_scheduler_had_seen() {
    let draft = main(&[("tencent.com/vcuda-core", "100")]).annotate_all(&[
        ("tencent.com/gpu-assigned", "false"),
        ("tencent.com/predicate-gpu-idx-0", "2"),
    ]);
    assert_eq!(claim(&draft), one(&[(minor(2), Whole)]));
}

#[test]
fn gpu_admission_left_places_in_the_driver_s_order() {
    let draft = main(&[("nvidia.com/vcuda-core", "50"), ("nvidia.com/vcuda-memory", "2048")])
        .annotate_all(&[
            ("nvidia.com/predicate-time", "1700000000000000000"),
            ("nvidia.com/predicate-node", "gpu-1"),
            ("nvidia.com/gpu-assigned", "true"),
            ("nvidia.com/predicate-gpu-idx-0", "1"),
        ]);
    assert_eq!(claim(&draft), one(&[(index(1), part(50, 2048))]));
}

#[test]
fn gpushare_left_one_card_for_the_pod() {
    let draft = pod()
        .app("main", &[("aliyun.com/gpu-mem", "2")])
        .app("idle", &[])
        .app("more", &[("aliyun.com/gpu-mem", "3")])
        .annotate_all(&[
            ("ALIYUN_COM_GPU_MEM_IDX", "1"),
            ("ALIYUN_COM_GPU_MEM_DEV", "15"),
            ("ALIYUN_COM_GPU_MEM_POD", "5"),
            ("ALIYUN_COM_GPU_MEM_ASSIGNED", "true"),
            ("ALIYUN_COM_GPU_MEM_ASSUME_TIME", "1700000000000000000"),
        ])
        .bound(BEFORE);
    let held = |main, more| {
        Claim::Shares(vec![
            holds(App, &[(minor(1), part(0, main))]),
            holds(App, &[(minor(1), part(0, more))]),
        ])
    };
    assert_eq!(claim(&draft), held(2048, 3072));
    let mebibytes = Settings { gpushare_unit: MemoryUnit::Mebibytes, ..taken_over() };
    assert_eq!(dialect::observe(&draft.build(), &mebibytes).unwrap().claim, held(2, 3));
}

#[test]
fn newer_schedulers_of_the_gpushare_family_left_json_that_counts_first() {
    let draft = pod()
        .app("main", &[("aliyun.com/gpu-mem", "2")])
        .app("idle", &[])
        .app("more", &[("aliyun.com/gpu-mem", "3")])
        .annotate("ALIYUN_COM_GPU_MEM_IDX", "0")
        .annotate("scheduler.framework.gpushare.allocation", r#"{"0":{"1":2},"2":{"3":3}}"#)
        .bound(BEFORE);
    let expected =
        vec![holds(App, &[(minor(1), part(0, 2048))]), holds(App, &[(minor(3), part(0, 3072))])];
    assert_eq!(claim(&draft), Claim::Shares(expected));
}

#[test]
fn a_pod_that_gpushare_failed_to_serve_holds_nothing() {
    let draft = main(&[("aliyun.com/gpu-mem", "2")]).annotate("ALIYUN_COM_GPU_MEM_IDX", "-1");
    assert_eq!(claim(&draft), Claim::Nothing);
}

const HAMI: &[(&str, &str)] = &[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "3000")];
const HAMI_LIST: &str = "hami.io/vgpu-devices-allocated";

#[test]
fn hami_left_uuids_with_what_it_gave_of_each() {
    let draft = pod()
        .app("main", HAMI)
        .app("idle", &[])
        .app("pair", &[("nvidia.com/gpu", "2"), ("nvidia.com/gpucores", "30")])
        .annotate_all(&[
            ("hami.io/vgpu-node", "gpu-1"),
            ("hami.io/vgpu-time", "1700000000"),
            ("hami.io/bind-time", "1700000000"),
            ("hami.io/bind-phase", "success"),
            ("hami.io/vgpu-devices-to-allocate", ";;;"),
            (HAMI_LIST, "GPU-a,NVIDIA,3000,0:;;GPU-b,NVIDIA,16384,30:GPU-a,NVIDIA,16384,30:;"),
        ])
        .bound(BEFORE);
    let expected = vec![
        holds(App, &[(id("GPU-a"), part(0, 3000))]),
        holds(App, &[(id("GPU-b"), part(30, 16384)), (id("GPU-a"), part(30, 16384))]),
    ];
    assert_eq!(claim(&draft), Claim::Shares(expected));
}

#[test]
fn all_the_compute_of_a_hami_card_was_the_card_for_oneself() {
    let draft = main(&[("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", "100")])
        .annotate(HAMI_LIST, "GPU-a,NVIDIA,3000,100:;");
    assert_eq!(claim(&draft), one(&[(id("GPU-a"), Whole)]));
}

#[test]
fn releases_of_hami_differ_in_init_containers_and_in_the_last_separator() {
    let draft = pod().init("fetch", HAMI).app("main", HAMI).app("idle", &[]).bound(BEFORE);
    let fetch = holds(Init, &[(id("GPU-b"), part(0, 100))]);
    let main = holds(App, &[(id("GPU-a"), part(0, 3000))]);
    let table = [
        ("GPU-a,NVIDIA,3000,0:;;", vec![main.clone()]),
        ("GPU-a,NVIDIA,3000,0:;", vec![main.clone()]),
        ("GPU-a,NVIDIA,3000,0:", vec![main.clone()]),
        ("GPU-b,NVIDIA,100,0:;GPU-a,NVIDIA,3000,0:;;", vec![fetch.clone(), main.clone()]),
        (";GPU-a,NVIDIA,3000,0:;;", vec![main]),
    ];
    for (list, expected) in table {
        let draft = draft.clone().annotate(HAMI_LIST, list);
        assert_eq!(claim(&draft), Claim::Shares(expected), "{list}");
    }
}

const VGPU: &[(&str, &str)] = &[("nvidia.com/vgpu-number", "1"), ("nvidia.com/vgpu-cores", "10")];

#[test]
fn vgpu_manager_left_uuids_by_container_name() {
    let draft = pod()
        .sidecar("watch", VGPU)
        .app("main", VGPU)
        .app("idle", &[])
        .annotate_all(&[
            ("nvidia.com/predicate-node", "gpu-1"),
            ("nvidia.com/predicate-time", "18446744073709551615"),
            // In no order but its own.
            (
                "nvidia.com/pre-allocated",
                "main[0_GPU-a_10_1024,1_GPU-b_10_1024];idle[];watch[1_GPU-b_5_512]",
            ),
        ])
        .bound(BEFORE);
    let expected = vec![
        holds(Sidecar, &[(id("GPU-b"), part(5, 512))]),
        holds(App, &[(id("GPU-a"), part(10, 1024)), (id("GPU-b"), part(10, 1024))]),
    ];
    assert_eq!(claim(&draft), Claim::Shares(expected));
}

#[test]
fn what_vgpu_manager_s_plugin_gave_outranks_its_scheduler_container_by_container() {
    let draft = |real: &str| {
        pod()
            .app("main", VGPU)
            .app("more", VGPU)
            .annotate("nvidia.com/pre-allocated", "main[0_GPU-a_10_1024];more[0_GPU-a_20_2048]")
            .annotate("nvidia.com/real-allocated", real)
            .bound(BEFORE)
    };
    let held = |main, more| {
        Claim::Shares(vec![
            holds(App, &[(id(main), part(10, 1024))]),
            holds(App, &[(id(more), part(20, 2048))]),
        ])
    };
    let all = draft("main[1_GPU-b_10_1024];more[1_GPU-b_20_2048]");
    assert_eq!(claim(&all), held("GPU-b", "GPU-b"));
    // It adds containers as they start, so a young pod's list is short.
    assert_eq!(claim(&draft("main[1_GPU-b_10_1024]")), held("GPU-b", "GPU-a"));
    assert_eq!(claim(&draft("")), held("GPU-a", "GPU-a"));
}
