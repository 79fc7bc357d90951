//! nano-gpu: a percentage of a card, or whole cards.

use dialect::Dialect;

use crate::common::{asks, exact, notes, percent, pod, whole};

const PERCENT: &str = "nano-gpu/gpu-percent";
const MEMORY: &str = "nano-gpu/gpu-memory";

#[test]
fn a_percentage_is_that_much_compute_and_memory() {
    let table = [("1", 1), ("20", 20), ("99", 99), ("+20", 20), ("2e1", 20), ("20000m", 20)];
    for (text, cores) in table {
        assert_eq!(asks(&[(PERCENT, text)]), percent(1, cores, cores), "{text}");
        assert!(notes(&[(PERCENT, text)]).is_empty(), "{text}");
    }
}

#[test]
fn multiples_of_a_hundred_are_whole_cards() {
    for (text, cards) in [("100", 1), ("200", 2), ("6400", 64), ("0.8k", 8)] {
        assert_eq!(asks(&[(PERCENT, text)]), whole(cards), "{text}");
    }
}

#[test]
fn memory_may_be_said_apart_in_mebibytes() {
    assert_eq!(asks(&[(PERCENT, "30"), (MEMORY, "4096")]), exact(1, 30, 4096));
    assert_eq!(asks(&[(PERCENT, "30"), (MEMORY, "16777216")]), exact(1, 30, 1 << 24));
    assert_eq!(asks(&[(PERCENT, "30"), (MEMORY, "0")]), percent(1, 30, 30));
    assert_eq!(
        notes(&[(PERCENT, "30"), (MEMORY, "0")]),
        ["container main: nano-gpu/gpu-memory is 0, which is the same as leaving it out"]
    );
}

#[test]
fn whole_cards_come_with_all_their_memory() {
    let limits = [(PERCENT, "100"), (MEMORY, "4096")];
    assert_eq!(asks(&limits), whole(1));
    assert_eq!(
        notes(&limits),
        [
            "container main gets whole cards with all their memory; its nano-gpu/gpu-memory is ignored"
        ]
    );
}

#[test]
fn each_container_has_its_own_cards_and_no_burst() {
    let asked = pod().app("a", &[(PERCENT, "20")]).app("b", &[(PERCENT, "30")]).read();
    assert_eq!((asked.dialect, asked.request.one_card), (Dialect::Nano, false));
    assert!(asked.request.containers.iter().all(|container| container.burst.is_none()));
    assert_eq!(asked.request.tickets, [(PERCENT.to_owned(), 50)]);
}
