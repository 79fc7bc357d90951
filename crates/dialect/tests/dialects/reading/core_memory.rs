//! nano-gpu's first form and elastic-gpu: cores and memory, either alone or both.

use dialect::{Dialect, Settings};
use model::Part;

use crate::common::{asks, exact, notes, percent, pod, whole};

const CORE: &str = "elasticgpu.io/gpu-core";
const MEMORY: &str = "elasticgpu.io/gpu-memory";

#[test]
fn elastic_gpu_counts_memory_in_mebibytes() {
    assert_eq!(asks(&[(CORE, "30"), (MEMORY, "4096")]), exact(1, 30, 4096));
    assert_eq!(asks(&[(CORE, "30")]), percent(1, 30, 30));
    assert_eq!(asks(&[(CORE, "100")]), whole(1));
    assert_eq!(asks(&[(CORE, "300")]), whole(3));
}

#[test]
fn memory_alone_promises_no_compute() {
    assert_eq!(asks(&[(MEMORY, "256")]), exact(1, 0, 256));
    assert_eq!(asks(&[(CORE, "0"), (MEMORY, "256")]), exact(1, 0, 256));
    assert_eq!(asks(&[("nano-gpu.io/gpu-memory", "2")]), exact(1, 0, 2048));
}

#[test]
fn nano_gpu_io_counts_memory_in_gibibytes() {
    let io = |core, memory| [("nano-gpu.io/gpu-core", core), ("nano-gpu.io/gpu-memory", memory)];
    assert_eq!(asks(&io("50", "7")), exact(1, 50, 7168));
    assert_eq!(asks(&[("nano-gpu.io/gpu-core", "50")]), percent(1, 50, 50));
    assert_eq!(asks(&io("200", "0")), whole(2));
}

#[test]
fn whole_cards_come_with_all_their_memory() {
    let limits = [(CORE, "200"), (MEMORY, "256")];
    assert_eq!(asks(&limits), whole(2));
    assert_eq!(
        notes(&limits),
        [
            "container main gets whole cards with all their memory; its elasticgpu.io/gpu-memory is ignored"
        ]
    );
}

#[test]
fn defect_13_both_spellings_of_elastic_gpu_are_understood() {
    let com = [("elasticgpu.com/gpu-core", "30"), ("elasticgpu.com/gpu-memory", "4096")];
    assert_eq!(asks(&com), exact(1, 30, 4096));
    assert_eq!(pod().app("main", &com).read().dialect, Dialect::ElasticCom);
    assert_eq!(pod().app("main", &[(CORE, "30")]).read().dialect, Dialect::Elastic);
}

#[test]
fn either_resource_draws_its_own_tickets() {
    let asked = pod().app("a", &[(CORE, "30"), (MEMORY, "512")]).app("b", &[(MEMORY, "256")]);
    let alone = Dialect::Elastic.alone().unwrap().tickets;
    let tickets = [(CORE.to_owned(), 30), (MEMORY.to_owned(), 768), (alone.to_owned(), 256)];
    assert_eq!(asked.read().request.tickets, tickets);
}

#[test]
fn the_switch_drops_what_exceeds_whole_cards_as_elastic_gpu_did() {
    let floors = Settings { elastic_floors: true, ..Settings::default() };
    let table = [("101", 1), ("150", 1), ("199", 1), ("250", 2), ("200", 2), ("100", 1)];
    for domain in ["elasticgpu.io", "elasticgpu.com"] {
        for (text, cards) in table {
            let core = format!("{domain}/gpu-core");
            let asked = pod().app("main", &[(&core, text)]).read_by(&floors).unwrap().unwrap();
            let container = &asked.request.containers[0];
            assert_eq!((container.cards, container.part), (cards, Part::Whole), "{core} {text}");
            let exceeds = !text.ends_with("00");
            let note = format!(
                "container main asks for {text} {core}; what exceeds whole cards is dropped"
            );
            assert_eq!(asked.notes, exceeds.then_some(note).as_slice());
        }
    }
}

#[test]
fn without_the_switch_and_elsewhere_nothing_is_dropped() {
    let floors = Settings { elastic_floors: true, ..Settings::default() };
    let refused = |core: &str, settings: &Settings| {
        pod().app("main", &[(core, "150")]).read_by(settings).unwrap_err().to_string()
    };
    let sentence = |core: &str| {
        format!(
            "container main: {core} is 150; it must be 1 to 99 for a part of a card, \
             or a multiple of 100 for whole cards"
        )
    };
    assert_eq!(refused(CORE, &Settings::default()), sentence(CORE));
    // The switch is about elastic-gpu only.
    assert_eq!(refused("nano-gpu.io/gpu-core", &floors), sentence("nano-gpu.io/gpu-core"));
    assert_eq!(refused("tencent.com/vcuda-core", &floors), sentence("tencent.com/vcuda-core"));
}
