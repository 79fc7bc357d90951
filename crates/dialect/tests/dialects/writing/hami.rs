//! HAMi: one list, a field for each app container.

use model::Role::App;

use crate::common::{cards, env, map, place, pod, share};
use crate::writing::{four, four_placed, written};

const SHARE: [(&str, &str); 3] =
    [("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "2048"), ("nvidia.com/gpucores", "20")];
const TWO: [(&str, &str); 1] = [("nvidia.com/gpu", "2")];

#[test]
fn the_list_has_a_field_for_each_app_container() {
    let written = written(&four(&SHARE, &TWO), &four_placed(20, 2048));
    let list = "GPU-1,NVIDIA,2048,20:;;GPU-3,NVIDIA,16384,100:GPU-0,NVIDIA,16384,100:;";
    let annotations = map(&[
        (
            "nano-gpu/placement",
            "v1;gpu-1;init:fetch=GPU-2:20%+2048Mi;main=GPU-1:20%+2048Mi;\
             pair=GPU-3:whole,GPU-0:whole",
        ),
        ("hami.io/vgpu-node", "gpu-1"),
        ("hami.io/vgpu-time", "1780000000"),
        ("hami.io/bind-time", "1780000000"),
        ("hami.io/bind-phase", "allocating"),
        ("hami.io/vgpu-devices-to-allocate", list),
        ("hami.io/vgpu-devices-allocated", list),
    ]);
    assert_eq!((written.annotations, written.labels), (annotations, map(&[])));
}

#[test]
fn shares_show_their_limits_and_whole_cards_have_none() {
    let draft = four(&SHARE, &TWO);
    let placement = four_placed(20, 2048);
    let shown = [("CUDA_DEVICE_MEMORY_LIMIT_0", "2048m"), ("CUDA_DEVICE_SM_LIMIT", "20")];
    assert_eq!(env(&draft, "main", &placement, &cards()), map(&shown));
    assert_eq!(env(&draft, "pair", &placement, &cards()), map(&[]));
    assert_eq!(env(&draft, "idle", &placement, &cards()), map(&[]));
}

#[test]
fn every_card_of_a_share_shows_its_memory() {
    let limits = [("nvidia.com/gpu", "2"), ("nvidia.com/gpumem", "3000")];
    let draft = pod().app("main", &limits);
    let placement = place(&[("main", App, &[share(2, 0, 3000), share(0, 0, 3000)])]);
    let shown = [
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "3000m"),
        ("CUDA_DEVICE_SM_LIMIT", "0"),
    ];
    assert_eq!(env(&draft, "main", &placement, &cards()), map(&shown));
    assert_eq!(
        written(&draft, &placement).annotations["hami.io/vgpu-devices-allocated"],
        "GPU-2,NVIDIA,3000,0:GPU-0,NVIDIA,3000,0:;"
    );
}
