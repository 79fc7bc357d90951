//! vgpu-manager: so many cards, and of each some compute and memory.

use dialect::{Dialect, Settings};

use crate::common::{asks, exact, percent, pod, whole};

const NUMBER: &str = "nvidia.com/vgpu-number";
const CORES: &str = "nvidia.com/vgpu-cores";
const MEMORY: &str = "nvidia.com/vgpu-memory";

#[test]
fn it_is_spoken_only_where_the_administrator_says_so() {
    let draft = pod().app("main", &[(NUMBER, "1"), (CORES, "50")]);
    assert_eq!(draft.read_by(&Settings::default()), Ok(None));
    assert_eq!(draft.read().dialect, Dialect::VgpuManager);
}

#[test]
fn cards_come_whole_unless_a_part_is_asked() {
    assert_eq!(asks(&[(NUMBER, "1")]), whole(1));
    assert_eq!(asks(&[(NUMBER, "16")]), whole(16));
    assert_eq!(asks(&[(NUMBER, "2"), (CORES, "100")]), whole(2));
    assert_eq!(asks(&[(NUMBER, "2"), (CORES, "50"), (MEMORY, "2048")]), exact(2, 50, 2048));
    assert_eq!(asks(&[(NUMBER, "1"), (MEMORY, "2048")]), exact(1, 0, 2048));
    assert_eq!(asks(&[(NUMBER, "1"), (CORES, "50")]), percent(1, 50, 100));
    assert_eq!(asks(&[(NUMBER, "1"), (CORES, "100"), (MEMORY, "2048")]), exact(1, 100, 2048));
}

#[test]
fn only_the_cards_draw_tickets() {
    let asked = pod().app("main", &[(NUMBER, "2"), (CORES, "50"), (MEMORY, "2048")]).read();
    assert_eq!(asked.request.tickets, [(NUMBER.to_owned(), 2)]);
}
