//! vgpu-manager: so many cards, and of each some compute and memory.

use dialect::{Dialect, Settings};
use model::Cores;

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

#[test]
fn the_compute_policy_says_whether_shares_may_use_an_idle_card() {
    const POLICY: &str = "nvidia.com/vgpu-compute-policy";
    let share = [(NUMBER, "1"), (CORES, "50"), (MEMORY, "2048")];
    let asked = |text: &str| {
        let draft = pod().app("a", &share).app("b", &[(NUMBER, "1")]).app("c", &[]);
        let asked = draft.annotate(POLICY, text).read();
        let bursts: Vec<_> = asked.request.containers.iter().map(|c| c.burst).collect();
        (bursts, asked.notes)
    };
    assert_eq!(asked("fixed"), (vec![None, None], vec![]));
    // A whole card has no limit to raise.
    assert_eq!(asked(" balance "), (vec![Some(Cores(100)), None], vec![]));
    let note = format!(
        "annotation {POLICY} is none; shares may use the whole card while it is idle, as with balance"
    );
    assert_eq!(asked("none"), (vec![Some(Cores(100)), None], vec![note]));
    let free =
        pod().app("a", &[(NUMBER, "1"), (MEMORY, "2048")]).annotate(POLICY, "balance").read();
    assert_eq!(free.request.containers[0].burst, None, "without compute there is no limit");
    assert_eq!(
        pod().app("a", &share).annotate(POLICY, "fair").refusal(),
        format!("annotation {POLICY} is \"fair\"; it must be fixed, balance or none")
    );
}
