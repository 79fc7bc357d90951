//! The rest of the ways: each function that no other test drives.

use std::ffi::c_void;

use machine::Clock;

use crate::graph_memory::{Allocation, graph};
use crate::paths::{account, truth};
use crate::rig::{self, Driver, MIB, OUT_OF_MEMORY, Rig, Share};

/// Makes a graph ready.
type Ready = fn(&Driver, u64) -> u64;
/// Adds a node to a graph.
type Add = fn(&Driver, u64, *mut Any) -> u32;

const NONE: *const c_void = std::ptr::null();

fn settled(what: &str, mib: u64) {
    assert_eq!((account(), truth()), (mib * MIB, mib * MIB), "{what}");
}

#[test]
fn every_way_out_of_a_context_gives_back() {
    rig::inside("every_way_out_of_a_context_gives_back", |driver| {
        ok!(driver, cuInit(0 => u32));
        let make = || {
            let mut context = 0_u64;
            ok!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32));
            driver.allocate(100 * MIB).unwrap();
            driver.allocate(5).unwrap();
            settled("made", 402);
            context
        };
        let context = make();
        ok!(driver, cuCtxDestroy(context => u64));
        settled("cuCtxDestroy", 0);
        let (context, mut same) = (make(), 0_u64);
        ok!(driver, cuCtxAttach(&raw mut same => *mut u64, 0 => u32));
        ok!(driver, cuCtxDetach(context => u64));
        settled("cuCtxDetach, once of twice", 402);
        ok!(driver, cuCtxDetach(context => u64));
        settled("cuCtxDetach", 0);
        driver.context();
        driver.allocate(100 * MIB).unwrap();
        ok!(driver, cuDevicePrimaryCtxRelease(0 => i32));
        settled("cuDevicePrimaryCtxRelease", 0);
        driver.context();
        driver.allocate(100 * MIB).unwrap();
        ok!(driver, cuDevicePrimaryCtxReset(0 => i32));
        settled("cuDevicePrimaryCtxReset", 0);
    });
}

#[test]
fn the_newest_contexts_are_charged() {
    const TEST: &str = "the_newest_contexts_are_charged";
    if rig::role().is_none() {
        let shares = [Share::memory(0, 2048 * MIB)];
        return Rig::with("dgx-a100", "555.58.02", &shares, |_| {}).run(TEST, "body");
    }
    let driver = Driver::load();
    ok!(driver, cuInit(0 => u32));
    let mut made = Vec::new();
    let code = loop {
        let mut context = 0_u64;
        match call!(driver, cuCtxCreate_v4(&raw mut context => *mut u64, NONE => *const c_void, 0 => u32, 0 => i32))
        {
            0 => made.push(context),
            code => break code,
        }
    };
    assert_eq!((code, made.len()), (OUT_OF_MEMORY, 6));
    for context in made {
        ok!(driver, cuCtxDestroy_v2(context => u64));
    }
    settled("cuCtxCreate_v4", 0);
    // A green context brings the primary one to life, and shares it.
    let (mut resource, mut description, mut green, mut context) =
        ([0_u64; 64], 0_u64, 0_u64, 0_u64);
    ok!(driver, cuDeviceGetDevResource(0 => i32, &raw mut resource => *mut [u64; 64], 1 => u32));
    ok!(driver, cuDevResourceGenerateDesc(&raw mut description => *mut u64, &raw mut resource => *mut [u64; 64], 1 => u32));
    ok!(driver, cuGreenCtxCreate(&raw mut green => *mut u64, description => u64, 0 => i32, 1 => u32));
    settled("cuGreenCtxCreate", 300);
    ok!(driver, cuCtxFromGreenCtx(&raw mut context => *mut u64, green => u64));
    ok!(driver, cuCtxSetCurrent(context => u64));
    let address = driver.allocate(64 * MIB).unwrap();
    settled("in a green context", 364);
    ok!(driver, cuMemFree_v2(address => u64));
    ok!(driver, cuGreenCtxDestroy(green => u64));
    assert_eq!(account(), truth());
}

#[test]
fn every_way_to_run_a_graph_that_allocates_is_charged() {
    rig::inside("every_way_to_run_a_graph_that_allocates_is_charged", |driver| {
        driver.context();
        let ready: [(&str, Ready); 4] = [
            ("cuGraphInstantiate", |driver, graph| {
                let mut exec = 0_u64;
                ok!(driver, cuGraphInstantiate(&raw mut exec => *mut u64, graph => u64, NONE => *const c_void, NONE => *const c_void, 0 => u64));
                exec
            }),
            ("cuGraphInstantiate_v2", |driver, graph| {
                let mut exec = 0_u64;
                ok!(driver, cuGraphInstantiate_v2(&raw mut exec => *mut u64, graph => u64, NONE => *const c_void, NONE => *const c_void, 0 => u64));
                exec
            }),
            ("cuGraphInstantiateWithParams", |driver, graph| {
                let (mut exec, mut parameters) = (0_u64, [0_u64; 8]);
                ok!(driver, cuGraphInstantiateWithParams(&raw mut exec => *mut u64, graph => u64, &raw mut parameters => *mut [u64; 8]));
                exec
            }),
            ("cuGraphInstantiateWithParams_ptsz", |driver, graph| {
                let (mut exec, mut parameters) = (0_u64, [0_u64; 8]);
                ok!(driver, cuGraphInstantiateWithParams_ptsz(&raw mut exec => *mut u64, graph => u64, &raw mut parameters => *mut [u64; 8]));
                exec
            }),
        ];
        for (name, ready) in ready {
            let (graph, address) = graph(driver);
            let exec = ready(driver, graph);
            ok!(driver, cuGraphUpload(exec => u64, 0 => u64));
            ok!(driver, cuGraphUpload_ptsz(exec => u64, 0 => u64));
            assert_eq!(account(), truth(), "{name}");
            // The same graph again changes nothing of what it needs.
            let mut result = [0_u64; 4];
            let updated = call!(driver, cuGraphExecUpdate_v2(exec => u64, graph => u64, &raw mut result => *mut [u64; 4]));
            let (mut node, mut why) = (0_u64, 0_u32);
            let before = call!(driver, cuGraphExecUpdate(exec => u64, graph => u64, &raw mut node => *mut u64, &raw mut why => *mut u32));
            assert_eq!(updated, before, "{name}");
            ok!(driver, cuGraphLaunch(exec => u64, 0 => u64));
            ok!(driver, cuCtxSynchronize());
            settled(name, 364);
            ok!(driver, cuMemFree_v2(address => u64));
            ok!(driver, cuGraphExecDestroy(exec => u64));
            ok!(driver, cuGraphDestroy(graph => u64));
            ok!(driver, cuDeviceGraphMemTrim(0 => i32));
            settled(name, 300);
        }
    });
}

/// `CUgraphNodeParams` with an allocation.
#[repr(C)]
struct Any {
    kind: u32,
    reserved: [u32; 3],
    allocation: Allocation,
    rest: [u64; 15],
}

#[test]
fn nodes_of_any_kind_and_captures_of_threads_are_charged() {
    rig::inside("nodes_of_any_kind_and_captures_of_threads_are_charged", |driver| {
        driver.context();
        let add: [(&str, Add); 2] = [
            ("cuGraphAddNode", |driver, graph, any| {
                let mut node = 0_u64;
                call!(driver, cuGraphAddNode(&raw mut node => *mut u64, graph => u64, NONE => *const c_void, 0 => u64, any => *mut Any))
            }),
            ("cuGraphAddNode_v2", |driver, graph, any| {
                let mut node = 0_u64;
                call!(driver, cuGraphAddNode_v2(&raw mut node => *mut u64, graph => u64, NONE => *const c_void, NONE => *const c_void, 0 => u64, any => *mut Any))
            }),
        ];
        for (name, add) in add {
            let mut graph = 0_u64;
            ok!(driver, cuGraphCreate(&raw mut graph => *mut u64, 0 => u32));
            let mut any = Any {
                kind: 10,
                reserved: [0; 3],
                allocation: Allocation::of(64 * MIB),
                rest: [0; 15],
            };
            assert_eq!(add(driver, graph, &raw mut any), 0, "{name}");
            let mut exec = 0_u64;
            ok!(driver, cuGraphInstantiateWithFlags(&raw mut exec => *mut u64, graph => u64, 0 => u64));
            ok!(driver, cuGraphLaunch(exec => u64, 0 => u64));
            ok!(driver, cuCtxSynchronize());
            settled(name, 364);
            ok!(driver, cuMemFree_v2(any.allocation.address => u64));
            ok!(driver, cuDeviceGraphMemTrim(0 => i32));
            settled(name, 300);
        }
        let stream = driver.stream(1);
        ok!(driver, cuStreamBeginCapture_v2_ptsz(stream => u64, 2 => u32));
        let (mut address, mut graph, mut exec) = (0_u64, 0_u64, 0_u64);
        ok!(driver, cuMemAllocAsync_ptsz(&raw mut address => *mut u64, 64 * MIB => u64, stream => u64));
        ok!(driver, cuStreamEndCapture_ptsz(stream => u64, &raw mut graph => *mut u64));
        ok!(driver, cuGraphInstantiateWithFlags(&raw mut exec => *mut u64, graph => u64, 0 => u64));
        ok!(driver, cuGraphLaunch(exec => u64, stream => u64));
        ok!(driver, cuCtxSynchronize());
        settled("cuStreamEndCapture_ptsz", 364);
    });
}

#[test]
fn a_pool_of_the_programs_own_stands_in_for_the_devices() {
    rig::inside("a_pool_of_the_programs_own_stands_in_for_the_devices", |driver| {
        driver.context();
        let (mut pool, mut address, mut shape) = (0_u64, 0_u64, [0_u64; 16]);
        (shape[0], shape[1]) = (1, 1);
        ok!(driver, cuMemPoolCreate(&raw mut pool => *mut u64, &raw const shape => *const [u64; 16]));
        ok!(driver, cuDeviceSetMemPool(0 => i32, pool => u64));
        ok!(driver, cuMemAllocAsync(&raw mut address => *mut u64, 64 * MIB => u64, 0 => u64));
        settled("cuDeviceSetMemPool", 364);
        let code = call!(driver, cuMemAllocAsync(&raw mut address => *mut u64, 2000 * MIB => u64, 0 => u64));
        assert_eq!(code, OUT_OF_MEMORY);
        // A function that is loaded explicitly.
        let function = driver.function("busy_1us");
        ok!(driver, cuFuncLoad(function => u64));
        assert_eq!(account(), truth());
    });
}

#[test]
fn the_oldest_queries_show_the_share() {
    rig::inside("the_oldest_queries_show_the_share", |driver| {
        driver.context();
        let (mut free, mut total) = (0_u32, 0_u32);
        ok!(driver, cuMemGetInfo(&raw mut free => *mut u32, &raw mut total => *mut u32));
        assert_eq!(u64::from(total), 2048 * MIB);
        assert!(u64::from(free) <= 1748 * MIB);
        ok!(driver, cuDeviceTotalMem(&raw mut total => *mut u32, 0 => i32));
        assert_eq!(u64::from(total), 2048 * MIB);
    });
}

/// Exported memory is charged to who made it, however many others map it.
#[test]
fn memory_of_another_process_is_charged_once() {
    const TEST: &str = "memory_of_another_process_is_charged_once";
    let text = |bytes: &[u8; 64]| -> String {
        let digit = |value: u8| char::from_digit(value.into(), 16).unwrap();
        bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    };
    match rig::role().as_deref() {
        None => Rig::new().run(TEST, "exporter"),
        Some("exporter") => {
            let driver = Driver::load();
            driver.context();
            let address = driver.allocate(1024 * MIB).unwrap();
            let mut handle = [0_u8; 64];
            ok!(driver, cuIpcGetMemHandle(&raw mut handle => *mut [u8; 64], address => u64));
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args([TEST, "--nocapture", "--test-threads=1"])
                .env("LIMITER_TEST_ROLE", "importer")
                .env("HANDLE", text(&handle))
                .status()
                .unwrap();
            assert!(child.success());
        }
        Some(_) => {
            let driver = Driver::load();
            driver.context();
            let said = std::env::var("HANDLE").unwrap();
            let byte = |at: usize| u8::from_str_radix(&said[2 * at..2 * at + 2], 16).unwrap();
            let handle: [u8; 64] = std::array::from_fn(byte);
            let mut address = 0_u64;
            ok!(driver, cuIpcOpenMemHandle_v2(&raw mut address => *mut u64, handle => [u8; 64], 1 => u32));
            assert_eq!(account(), (1324 + 300) * MIB);
            ok!(driver, cuIpcCloseMemHandle(address => u64));
            assert_eq!(account(), (1324 + 300) * MIB);
        }
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
struct Config {
    sizes: [u32; 7],
    stream: u64,
    attributes: *const c_void,
    count: u32,
}

/// `CUDA_LAUNCH_PARAMS`.
#[repr(C)]
struct OnCard {
    function: u64,
    sizes: [u32; 7],
    stream: u64,
    arguments: *const c_void,
}

#[test]
fn every_way_to_launch_is_counted() {
    const TEST: &str = "every_way_to_launch_is_counted";
    if rig::role().is_none() {
        let share = Share { device: 0, memory: 2048 * MIB, cores: 50, burst: 50 };
        let rig = Rig::with("dgx-a100", "550.163.01", &[share], |description| {
            description.clock = Clock::Real;
        });
        rig.run(TEST, "body");
        let counted = rig.account("root", 0).launches;
        assert!(counted >= 10, "{counted} launches were counted");
        return;
    }
    let driver = Driver::load();
    driver.context();
    let (function, stream) = (driver.function("busy_100us"), driver.stream(1));
    let config = Config { sizes: [1, 1, 1, 32, 1, 1, 0], stream, attributes: NONE, count: 0 };
    let config = &raw const config;
    let card = OnCard { function, sizes: [1, 1, 1, 32, 1, 1, 0], stream, arguments: NONE };
    assert_eq!(driver.launch(function, 1, stream), 0);
    ok!(driver, cuLaunchKernel_ptsz(function => u64, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
        stream => u64, NONE => *const c_void, NONE => *const c_void));
    ok!(driver, cuLaunchKernelEx(config => *const Config, function => u64, NONE => *const c_void, NONE => *const c_void));
    ok!(driver, cuLaunchKernelEx_ptsz(config => *const Config, function => u64, NONE => *const c_void, NONE => *const c_void));
    ok!(driver, cuLaunchCooperativeKernel(function => u64, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
        stream => u64, NONE => *const c_void));
    ok!(driver, cuLaunchCooperativeKernel_ptsz(function => u64, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
        stream => u64, NONE => *const c_void));
    ok!(driver, cuLaunchCooperativeKernelMultiDevice(&raw const card => *const OnCard, 1 => u32, 0 => u32));
    ok!(driver, cuFuncSetBlockShape(function => u64, 32 => i32, 1 => i32, 1 => i32));
    ok!(driver, cuLaunch(function => u64));
    ok!(driver, cuLaunchGrid(function => u64, 1 => i32, 1 => i32));
    ok!(driver, cuLaunchGridAsync(function => u64, 1 => i32, 1 => i32, stream => u64));
    ok!(driver, cuCtxSynchronize());
    ok!(driver, cuDevicePrimaryCtxReset_v2(0 => i32));
}
