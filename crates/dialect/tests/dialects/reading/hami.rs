//! HAMi: so many cards, and of each some memory and compute.

use dialect::{Dialect, Settings};

use crate::common::{asks, exact, notes, percent, pod, whole};

const GPU: &str = "nvidia.com/gpu";
const MEM: &str = "nvidia.com/gpumem";
const MEM_PERCENT: &str = "nvidia.com/gpumem-percentage";
const CORES: &str = "nvidia.com/gpucores";

#[test]
fn by_default_nvidia_com_gpu_is_not_ours() {
    let draft = pod().app("main", &[(GPU, "1"), (MEM, "3000")]);
    assert_eq!(draft.read_by(&Settings::default()), Ok(None));
    assert_eq!(draft.read().dialect, Dialect::Hami);
}

#[test]
fn cards_alone_are_whole() {
    assert_eq!(asks(&[(GPU, "1")]), whole(1));
    assert_eq!(asks(&[(GPU, "2")]), whole(2));
    assert_eq!(asks(&[(GPU, "2"), (CORES, "100")]), whole(2));
    assert!(notes(&[(GPU, "2")]).is_empty());
}

#[test]
fn memory_and_compute_are_of_each_card() {
    assert_eq!(asks(&[(GPU, "2"), (MEM, "3000"), (CORES, "30")]), exact(2, 30, 3000));
    assert_eq!(asks(&[(GPU, "1"), (MEM, "3000")]), exact(1, 0, 3000));
    assert_eq!(asks(&[(GPU, "1"), (MEM_PERCENT, "50"), (CORES, "30")]), percent(1, 30, 50));
    assert_eq!(asks(&[(GPU, "1"), (MEM_PERCENT, "100")]), percent(1, 0, 100));
    // Compute alone leaves all the memory to the container.
    assert_eq!(asks(&[(GPU, "1"), (CORES, "30")]), percent(1, 30, 100));
}

#[test]
fn what_has_no_effect_is_said() {
    assert_eq!(
        notes(&[(GPU, "1"), (MEM, "3000"), (MEM_PERCENT, "50")]),
        ["container main asks for nvidia.com/gpumem; its nvidia.com/gpumem-percentage is ignored"]
    );
    for ignored in [MEM, MEM_PERCENT] {
        assert_eq!(
            notes(&[(GPU, "1"), (ignored, "50"), (CORES, "100")]),
            [format!(
                "container main gets whole cards with all their memory; its {ignored} is ignored"
            )]
        );
    }
}

#[test]
fn only_the_cards_draw_tickets() {
    let asked = pod().app("main", &[(GPU, "2"), (MEM, "3000"), (CORES, "30")]).read();
    assert_eq!(asked.request.tickets, [(GPU.to_owned(), 2)]);
}
