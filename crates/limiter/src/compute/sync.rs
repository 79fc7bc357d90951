//! Calls that wait for the device, that stand between launches, or that begin a capture.

use core::ffi::c_void;

use super::{Wait, before_copy, captured, capturing, stream_goes, waiting};
use crate::driver::hooks;

/// The stream that is meant: null is the default one.
fn legacy(stream: u64) -> u64 {
    if stream == 0 { 1 } else { stream }
}

fn thread(stream: u64) -> u64 {
    if stream == 0 { 2 } else { stream }
}

hooks! {
    cuCtxSynchronize() |real| {
        waiting(Wait::Context, real)
    }

    cuCtxSynchronize_v2(context: u64) |real| {
        waiting(Wait::Context, || real(context))
    }

    cuStreamSynchronize(stream: u64) |real| {
        waiting(Wait::Part, || real(stream))
    }

    cuStreamSynchronize_ptsz(stream: u64) |real| {
        waiting(Wait::Part, || real(stream))
    }

    cuStreamQuery(stream: u64) |real| {
        waiting(Wait::Part, || real(stream))
    }

    cuStreamQuery_ptsz(stream: u64) |real| {
        waiting(Wait::Part, || real(stream))
    }

    cuEventSynchronize(event: u64) |real| {
        waiting(Wait::Part, || real(event))
    }

    cuEventQuery(event: u64) |real| {
        waiting(Wait::Part, || real(event))
    }

    cuStreamWaitEvent(stream: u64, event: u64, flags: u32) |real| {
        before_copy(legacy(stream));
        real(stream, event, flags)
    }

    cuStreamWaitEvent_ptsz(stream: u64, event: u64, flags: u32) |real| {
        before_copy(thread(stream));
        real(stream, event, flags)
    }

    cuStreamBeginCapture(stream: u64) |real| {
        capturing(|| real(stream))
    }

    cuStreamBeginCapture_ptsz(stream: u64) |real| {
        capturing(|| real(stream))
    }

    cuStreamBeginCapture_v2(stream: u64, mode: u32) |real| {
        capturing(|| real(stream, mode))
    }

    cuStreamBeginCapture_v2_ptsz(stream: u64, mode: u32) |real| {
        capturing(|| real(stream, mode))
    }

    cuStreamBeginCaptureToGraph(
        stream: u64, graph: u64, nodes: *const c_void, edges: *const c_void, count: usize, mode: u32,
    ) |real| {
        capturing(|| real(stream, graph, nodes, edges, count, mode))
    }

    cuStreamBeginCaptureToGraph_ptsz(
        stream: u64, graph: u64, nodes: *const c_void, edges: *const c_void, count: usize, mode: u32,
    ) |real| {
        capturing(|| real(stream, graph, nodes, edges, count, mode))
    }

    cuStreamEndCapture(stream: u64, graph: *mut c_void) |real| {
        captured(legacy(stream), || real(stream, graph))
    }

    cuStreamEndCapture_ptsz(stream: u64, graph: *mut c_void) |real| {
        captured(thread(stream), || real(stream, graph))
    }

    cuStreamDestroy(stream: u64) |real| {
        stream_goes(stream, || real(stream))
    }

    cuStreamDestroy_v2(stream: u64) |real| {
        stream_goes(stream, || real(stream))
    }
}
