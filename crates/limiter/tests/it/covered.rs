//! Every function that allocates, frees, launches, imports or tells is limited by a test that drives it, or
//! harmless for a reason that is written down.

use std::collections::{BTreeMap, BTreeSet};

const COVERED: &str = include_str!("../../covered.tsv");
const EXPORTS: &str = include_str!("../../exports.tsv");

fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().skip(1).map(|row| row.split('\t').collect())
}

#[test]
fn every_row_is_limited_by_a_test_or_harmless_for_a_reason() {
    let hooks: BTreeMap<&str, &str> = rows(EXPORTS).map(|row| (row[0], row[2])).collect();
    let mut seen = BTreeSet::new();
    for row in rows(COVERED) {
        let [symbol, category, covered, by] = row[..] else { panic!("four cells a row: {row:?}") };
        assert!(seen.insert(symbol), "{symbol} twice");
        assert!(hooks.contains_key(symbol), "{symbol} is no export");
        match covered {
            "limited" => {
                let path = format!("{}/tests/it/{by}.rs", env!("CARGO_MANIFEST_DIR"));
                let driven = |path: String| {
                    std::fs::read_to_string(path).unwrap().contains(&format!("{symbol}("))
                };
                let rig = format!("{}/tests/it/rig.rs", env!("CARGO_MANIFEST_DIR"));
                assert!(driven(path) || driven(rig), "{symbol}: {by} does not call it");
                // What only builds a graph is limited where the graph is run.
                let built = category == "alloc-graph" || symbol == "cuDeviceSetMemPool";
                assert!(hooks[symbol] != "-" || built, "{symbol} is not hooked");
            }
            "harmless" => assert!(by.len() > 20, "{symbol}: {by} is no reason"),
            other => panic!("{symbol}: {other}"),
        }
    }
    assert_eq!(seen.len(), 230);
}

#[test]
fn whatever_looks_like_an_allocation_is_in_the_table() {
    let covered: BTreeSet<&str> = rows(COVERED).map(|row| row[0]).collect();
    let words = ["Alloc", "Create", "Load", "Import", "Launch", "Open", "Instantiate"];
    // Names that make no memory of a device: streams, events, views, handles of the host.
    let aside = [
        "cuStream",
        "cuEvent",
        "cuTex",
        "cuSurf",
        "cuUserObject",
        "cuLink",
        "cuGraphCreate",
        "Host",
        "cuGraphConditional",
        "cuGraphMemAllocNodeGet",
        "cuGraphKernel",
        "cuIpcOpenEvent",
        "cuModuleGetLoading",
        "cuMemGetAllocation",
        "cuMemRetainAllocation",
        "cuImportExternalSemaphore",
        "cuGreenCtxStreamCreate",
        "cuFuncIsLoaded",
        "_ptsz",
        "cuGraphExecDestroy",
    ];
    let suspects = rows(EXPORTS)
        .filter(|row| row[1] == "cuda")
        .map(|row| row[0])
        .filter(|name| words.iter().any(|word| name.contains(word)))
        .filter(|name| !aside.iter().any(|part| name.contains(part)))
        .filter(|name| !covered.contains(name));
    assert_eq!(suspects.collect::<Vec<_>>(), Vec::<&str>::new());
}
