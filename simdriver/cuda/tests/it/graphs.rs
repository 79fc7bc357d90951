//! Graphs: built, captured, launched, changed; and the memory they take.

use std::ffi::c_void;

use crate::driver::{Driver, on};

const MIB: usize = 1 << 20;

fn close(measured: f32, expected: f32) {
    assert!(
        (measured - expected).abs() < 0.000_5 + expected * 1e-6,
        "{measured} ms, not {expected} ms"
    );
}

#[repr(C)]
struct Kernel {
    function: u64,
    shape: [u32; 7],
    arguments: usize,
    extra: usize,
}

fn kernel(driver: &Driver, graph: u64, before: &[u64], name: &str) -> u64 {
    let shape = Kernel {
        function: driver.function(name),
        shape: [1, 1, 1, 32, 1, 1, 0],
        arguments: 0,
        extra: 0,
    };
    let mut node = 0;
    ok!(driver, cuGraphAddKernelNode(&raw mut node => *mut u64, graph => u64, before.as_ptr() => *const u64, before.len() => usize,
        &raw const shape => *const Kernel));
    node
}

fn instantiate(driver: &Driver, graph: u64) -> u64 {
    let mut exec = 0;
    ok!(driver, cuGraphInstantiateWithFlags(&raw mut exec => *mut u64, graph => u64, 0 => u64));
    exec
}

/// How long a launch takes.
fn time(driver: &Driver, exec: u64, stream: u64) -> f32 {
    let (start, end) = (driver.event(0), driver.event(0));
    driver.record(start, stream);
    ok!(driver, cuGraphLaunch(exec => u64, stream => u64));
    driver.record(end, stream);
    ok!(driver, cuEventSynchronize(end => u64));
    driver.elapsed(start, end)
}

#[test]
fn branches_run_side_by_side() {
    on("t4x4", "550.163.01", "branches_run_side_by_side", |driver| {
        driver.context();
        let stream = driver.stream(1);
        let mut graph = 0;
        ok!(driver, cuGraphCreate(&raw mut graph => *mut u64, 0 => u32));
        let root = kernel(driver, graph, &[], "busy_1ms_sms_1");
        let left = kernel(driver, graph, &[root], "busy_2ms_sms_1");
        let right = kernel(driver, graph, &[root], "busy_5ms_sms_1");
        kernel(driver, graph, &[left, right], "busy_1ms_sms_1");
        let exec = instantiate(driver, graph);
        close(time(driver, exec, stream), 7.0);
        close(time(driver, exec, stream), 7.0);
        // The long branch switched off.
        ok!(driver, cuGraphNodeSetEnabled(exec => u64, right => u64, 0 => u32));
        close(time(driver, exec, stream), 4.0);
        let (mut count, mut roots) = (0, 0);
        ok!(driver, cuGraphGetNodes(graph => u64, std::ptr::null_mut() => *mut u64, &raw mut count => *mut usize));
        ok!(driver, cuGraphGetRootNodes(graph => u64, std::ptr::null_mut() => *mut u64, &raw mut roots => *mut usize));
        assert_eq!((count, roots), (4, 1));
        // Edges that go round are refused.
        assert_eq!(
            call!(driver, cuGraphAddDependencies(graph => u64, &raw const left => *const u64, &raw const root => *const u64, 1 => usize)),
            1
        );
    });
}

#[test]
fn a_child_graph_takes_its_nodes_place() {
    on("t4x4", "550.163.01", "a_child_graph_takes_its_nodes_place", |driver| {
        driver.context();
        let stream = driver.stream(1);
        let (mut inner, mut outer, mut node) = (0, 0, 0);
        ok!(driver, cuGraphCreate(&raw mut inner => *mut u64, 0 => u32));
        ok!(driver, cuGraphCreate(&raw mut outer => *mut u64, 0 => u32));
        let first = kernel(driver, inner, &[], "sleep_1ms");
        kernel(driver, inner, &[first], "sleep_1ms");
        let before = kernel(driver, outer, &[], "sleep_1ms");
        ok!(driver, cuGraphAddChildGraphNode(&raw mut node => *mut u64, outer => u64, &raw const before => *const u64, 1 => usize, inner => u64));
        kernel(driver, outer, &[node], "sleep_1ms");
        // The child is a copy: what becomes of the original does not matter.
        ok!(driver, cuGraphDestroy(inner => u64));
        close(time(driver, instantiate(driver, outer), stream), 4.0);
        let mut clone = 0;
        ok!(driver, cuGraphClone(&raw mut clone => *mut u64, outer => u64));
        let mut found = 0;
        ok!(driver, cuGraphNodeFindInClone(&raw mut found => *mut u64, before => u64, clone => u64));
        let mut kind = 99;
        ok!(driver, cuGraphNodeGetType(found => u64, &raw mut kind => *mut u32));
        assert_eq!(kind, 0);
    });
}

#[test]
fn a_captured_stream_becomes_a_graph() {
    on("t4x4", "550.163.01", "a_captured_stream_becomes_a_graph", |driver| {
        driver.context();
        let (one, two) = (driver.stream(1), driver.stream(1));
        let (fork, join) = (driver.event(2), driver.event(2));
        let function = driver.function("busy_3ms_sms_1");
        let word = driver.allocate(4).unwrap();
        ok!(driver, cuMemsetD32_v2(word => u64, 1 => u32, 1 => usize));
        ok!(driver, cuStreamBeginCapture_v2(one => u64, 0 => u32));
        driver.record(fork, one);
        ok!(driver, cuStreamWaitEvent(two => u64, fork => u64, 0 => u32));
        assert_eq!(driver.launch(function, 1, one), 0);
        assert_eq!(driver.launch(function, 1, two), 0);
        ok!(driver, cuMemsetD32Async(word => u64, 2 => u32, 1 => usize, two => u64));
        let mut status = 0;
        ok!(driver, cuStreamIsCapturing(two => u64, &raw mut status => *mut u32));
        assert_eq!(status, 1);
        assert_eq!(call!(driver, cuStreamSynchronize(one => u64)), 900);
        driver.record(join, two);
        ok!(driver, cuStreamWaitEvent(one => u64, join => u64, 0 => u32));
        let mut graph = 0;
        ok!(driver, cuStreamEndCapture(one => u64, &raw mut graph => *mut u64));
        let read = || {
            let mut value = 0_u32;
            ok!(driver, cuMemcpyDtoH_v2((&raw mut value).cast() => *mut c_void, word => u64, 4 => usize));
            value
        };
        assert_eq!(read(), 1, "nothing has happened yet");
        let exec = instantiate(driver, graph);
        let took = time(driver, exec, one);
        assert!((3.0..3.1).contains(&took), "{took}");
        assert_eq!(read(), 2);
    });
}

#[test]
fn a_capture_whose_streams_do_not_come_back_fails() {
    on("t4x4", "550.163.01", "a_capture_whose_streams_do_not_come_back_fails", |driver| {
        driver.context();
        let (one, two) = (driver.stream(1), driver.stream(1));
        let fork = driver.event(2);
        let function = driver.function("f");
        ok!(driver, cuStreamBeginCapture_v2(one => u64, 0 => u32));
        driver.record(fork, one);
        ok!(driver, cuStreamWaitEvent(two => u64, fork => u64, 0 => u32));
        assert_eq!(driver.launch(function, 1, two), 0);
        let mut graph = 5;
        assert_eq!(call!(driver, cuStreamEndCapture(two => u64, &raw mut graph => *mut u64)), 903);
        assert_eq!(call!(driver, cuStreamEndCapture(one => u64, &raw mut graph => *mut u64)), 904);
        assert_eq!(graph, 0);
        ok!(driver, cuStreamSynchronize(two => u64));
    });
}

#[repr(C)]
struct Alloc {
    kinds: [u32; 2],
    location: [i32; 2],
    rest: [u64; 9],
    access: [usize; 2],
    size: usize,
    address: u64,
}

#[test]
fn memory_of_graphs_is_paid_at_the_launch_and_kept() {
    on("t4x4", "550.163.01", "memory_of_graphs_is_paid_at_the_launch_and_kept", |driver| {
        driver.context();
        let stream = driver.stream(1);
        let (mut graph, mut alloc, mut free) = (0, 0, 0);
        ok!(driver, cuGraphCreate(&raw mut graph => *mut u64, 0 => u32));
        let mut shape = Alloc {
            kinds: [1, 0],
            location: [1, 0],
            rest: [0; 9],
            access: [0; 2],
            size: 100 * MIB,
            address: 0,
        };
        ok!(driver, cuGraphAddMemAllocNode(&raw mut alloc => *mut u64, graph => u64, std::ptr::null() => *const u64, 0 => usize, &raw mut shape => *mut Alloc));
        assert_ne!(shape.address, 0);
        let before = driver.memory().0;
        let exec = instantiate(driver, graph);
        assert_eq!(driver.memory().0, before);
        ok!(driver, cuGraphLaunch(exec => u64, stream => u64));
        ok!(driver, cuStreamSynchronize(stream => u64));
        assert_eq!(before - driver.memory().0, 100 * MIB);
        ok!(driver, cuMemsetD8_v2(shape.address => u64, 3 => u8, 10 => usize));
        assert_eq!(
            call!(driver, cuGraphLaunch(exec => u64, stream => u64)),
            1,
            "its memory was not freed"
        );
        ok!(driver, cuMemFreeAsync(shape.address => u64, stream => u64));
        ok!(driver, cuStreamSynchronize(stream => u64));
        let get = |attribute: u32| {
            let mut value = 0_u64;
            ok!(driver, cuDeviceGetGraphMemAttribute(0 => i32, attribute => u32, (&raw mut value).cast() => *mut c_void));
            usize::try_from(value).unwrap() / MIB
        };
        assert_eq!([get(0), get(1), get(2), get(3)], [0, 100, 100, 100]);
        assert_eq!(before - driver.memory().0, 100 * MIB, "graphs keep it");
        // With a node that frees it the graph can be launched again and again.
        ok!(driver, cuGraphAddMemFreeNode(&raw mut free => *mut u64, graph => u64, &raw const alloc => *const u64, 1 => usize, shape.address => u64));
        let again = instantiate(driver, graph);
        for _ in 0..3 {
            ok!(driver, cuGraphLaunch(again => u64, stream => u64));
            ok!(driver, cuStreamSynchronize(stream => u64));
        }
        assert_eq!(get(2), 100);
        ok!(driver, cuDeviceGraphMemTrim(0 => i32));
        assert_eq!(driver.memory().0, before);
    });
}

#[test]
fn a_graph_too_large_for_the_card_is_not_launched() {
    on("t4x4", "550.163.01", "a_graph_too_large_for_the_card_is_not_launched", |driver| {
        driver.context();
        let (mut graph, mut alloc) = (0, 0);
        ok!(driver, cuGraphCreate(&raw mut graph => *mut u64, 0 => u32));
        let mut shape = Alloc {
            kinds: [1, 0],
            location: [1, 0],
            rest: [0; 9],
            access: [0; 2],
            size: 20_000 * MIB,
            address: 0,
        };
        ok!(driver, cuGraphAddMemAllocNode(&raw mut alloc => *mut u64, graph => u64, std::ptr::null() => *const u64, 0 => usize, &raw mut shape => *mut Alloc));
        let exec = instantiate(driver, graph);
        assert_eq!(call!(driver, cuGraphLaunch(exec => u64, 0 => u64)), 2);
    });
}

#[test]
fn an_exec_takes_the_parameters_of_a_graph_of_the_same_shape() {
    on(
        "t4x4",
        "550.163.01",
        "an_exec_takes_the_parameters_of_a_graph_of_the_same_shape",
        |driver| {
            driver.context();
            let stream = driver.stream(1);
            let make = |names: &[&str]| {
                let mut graph = 0;
                ok!(driver, cuGraphCreate(&raw mut graph => *mut u64, 0 => u32));
                let mut before = Vec::new();
                for name in names {
                    before = vec![kernel(driver, graph, &before, name)];
                }
                graph
            };
            let exec = instantiate(driver, make(&["sleep_1ms", "sleep_1ms"]));
            let update = |graph: u64| {
                let mut result = [9_u64; 3];
                let code = call!(driver, cuGraphExecUpdate_v2(exec => u64, graph => u64, result.as_mut_ptr() => *mut u64));
                (code, result[0] & 0xffff_ffff)
            };
            assert_eq!(update(make(&["sleep_4ms", "sleep_5ms"])), (0, 0));
            close(time(driver, exec, stream), 9.0);
            assert_eq!(update(make(&["sleep_4ms"])), (910, 2));
        },
    );
}
