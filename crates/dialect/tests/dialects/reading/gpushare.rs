//! gpushare: memory of one card, in the unit of the cluster.

use dialect::{Dialect, MemoryUnit, Settings};
use model::Part;

use crate::common::{asks, exact, part, pod};

const MEM: &str = "aliyun.com/gpu-mem";

#[test]
fn a_unit_is_a_gibibyte_unless_the_cluster_says_mebibyte() {
    assert_eq!(asks(&[(MEM, "8")]), exact(1, 0, 8192));
    let mebibytes = Settings { gpushare_unit: MemoryUnit::Mebibytes, ..Settings::default() };
    let asked = pod().app("main", &[(MEM, "8")]).read_by(&mebibytes).unwrap().unwrap();
    assert_eq!(asked.request.containers[0].part, part(0, 8));
}

#[test]
fn a_pod_stays_on_one_card() {
    let asked = pod().app("a", &[(MEM, "2")]).app("b", &[(MEM, "3")]).app("c", &[]).read();
    assert_eq!((asked.dialect, asked.request.one_card), (Dialect::Gpushare, true));
    let parts: Vec<Part> = asked.request.containers.iter().map(|c| c.part).collect();
    assert_eq!(parts, [part(0, 2048), part(0, 3072)]);
    assert_eq!(asked.request.tickets, [(MEM.to_owned(), 5)]);
}

#[test]
fn the_number_of_cards_is_not_for_asking() {
    // Only the node shows it. A pod that asks for it got nothing from the original either.
    let read = pod().app("main", &[("aliyun.com/gpu-count", "1")]).read_by(&Settings::default());
    assert_eq!(read, Ok(None));
}
