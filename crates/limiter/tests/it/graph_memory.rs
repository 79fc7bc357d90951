//! Memory that graphs allocate ends at the limit.

use std::ffi::c_void;

use crate::paths::{account, truth};
use crate::rig::{self, Driver, MIB, OUT_OF_MEMORY};

const STEP: u64 = 64 * MIB;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct Allocation {
    pool: [u64; 11],
    access: u64,
    count: u64,
    size: u64,
    pub(crate) address: u64,
}

impl Allocation {
    /// Pinned memory of device 0.
    pub(crate) fn of(size: u64) -> Self {
        let mut pool = [0; 11];
        (pool[0], pool[1]) = (1, 1);
        Self { pool, access: 0, count: 0, size, address: 0 }
    }
}

/// A graph with one node that allocates.
pub(crate) fn graph(driver: &Driver) -> (u64, u64) {
    let (mut graph, mut node) = (0_u64, 0_u64);
    ok!(driver, cuGraphCreate(&raw mut graph => *mut u64, 0 => u32));
    let mut shape = Allocation::of(STEP);
    ok!(driver, cuGraphAddMemAllocNode(&raw mut node => *mut u64, graph => u64, std::ptr::null() => *const c_void,
        0 => u64, &raw mut shape => *mut Allocation));
    (graph, shape.address)
}

fn instantiate(driver: &Driver, graph: u64) -> u64 {
    let mut exec = 0_u64;
    ok!(driver, cuGraphInstantiateWithFlags(&raw mut exec => *mut u64, graph => u64, 0 => u64));
    exec
}

fn until_full(driver: &Driver, way: &str, launch: impl Fn(&Driver, u64) -> u32) {
    let mut held = Vec::new();
    let code = loop {
        let (graph, address) = graph(driver);
        let exec = instantiate(driver, graph);
        match launch(driver, exec) {
            0 => held.push(address),
            code => break code,
        }
        assert!(truth() <= 2048 * MIB, "{way}");
        assert_eq!(account(), truth(), "{way}");
    };
    assert_eq!((code, held.len()), (OUT_OF_MEMORY, 27), "{way}");
    for address in held {
        ok!(driver, cuMemFreeAsync(address => u64, 0 => u64));
    }
    ok!(driver, cuCtxSynchronize());
    ok!(driver, cuDeviceGraphMemTrim(0 => i32));
    assert_eq!((account(), truth()), (300 * MIB, 300 * MIB), "{way}");
}

#[test]
fn graphs_that_allocate_end_at_the_limit() {
    rig::inside("graphs_that_allocate_end_at_the_limit", |driver| {
        driver.context();
        until_full(driver, "cuGraphLaunch", |driver, exec| {
            let code = call!(driver, cuGraphLaunch(exec => u64, 0 => u64));
            ok!(driver, cuCtxSynchronize());
            code
        });
        until_full(driver, "cuGraphLaunch_ptsz", |driver, exec| {
            let code = call!(driver, cuGraphLaunch_ptsz(exec => u64, 0 => u64));
            ok!(driver, cuCtxSynchronize());
            code
        });
    });
}

#[test]
fn what_a_capture_allocates_is_the_graphs() {
    rig::inside("what_a_capture_allocates_is_the_graphs", |driver| {
        driver.context();
        let stream = driver.stream(1);
        ok!(driver, cuStreamBeginCapture_v2(stream => u64, 2 => u32));
        let (mut address, mut graph) = (0_u64, 0_u64);
        ok!(driver, cuMemAllocAsync(&raw mut address => *mut u64, 1024 * MIB => u64, stream => u64));
        ok!(driver, cuStreamEndCapture(stream => u64, &raw mut graph => *mut u64));
        assert_eq!((account(), truth()), (300 * MIB, 300 * MIB));
        let first = instantiate(driver, graph);
        ok!(driver, cuGraphLaunch(first => u64, stream => u64));
        ok!(driver, cuStreamSynchronize(stream => u64));
        assert_eq!((account(), truth()), (1324 * MIB, 1324 * MIB));
        // Within a graph it is found too.
        let (mut outer, mut node) = (0_u64, 0_u64);
        let (inner, _) = self::graph(driver);
        ok!(driver, cuGraphCreate(&raw mut outer => *mut u64, 0 => u32));
        let nothing = std::ptr::null::<c_void>();
        let added = call!(driver, cuGraphAddChildGraphNode(&raw mut node => *mut u64, outer => u64, nothing => *const c_void, 0 => u64, inner => u64));
        if added == 0 {
            let exec = instantiate(driver, outer);
            ok!(driver, cuGraphLaunch(exec => u64, stream => u64));
            ok!(driver, cuStreamSynchronize(stream => u64));
            assert_eq!(account(), truth());
        }
    });
}
