//! Every call that makes the device compute.

use core::ffi::c_void;

use super::{Kind, after_launch, before_launch};
use crate::driver::hooks;
use crate::memory::graph;

/// The default stream of the ordinary functions, and of those for threads.
const LEGACY: u64 = 1;
const THREAD: u64 = 2;

/// The stream that is meant: null is the default one.
#[inline]
fn legacy(stream: u64) -> u64 {
    if stream == 0 { LEGACY } else { stream }
}

#[inline]
fn thread(stream: u64) -> u64 {
    if stream == 0 { THREAD } else { stream }
}

/// Launches on a stream.
#[inline]
fn launch(stream: u64, kind: Kind, real: impl FnOnce() -> u32) -> u32 {
    match before_launch(stream, kind) {
        Ok(ticket) => {
            let code = real();
            after_launch(ticket, code);
            code
        }
        Err(code) => code,
    }
}

/// The stream in `CUlaunchConfig`: after six dimensions and the shared memory.
#[inline]
unsafe fn configured(config: *const c_void) -> u64 {
    if config.is_null() {
        return 0;
    }
    // SAFETY: the caller's configuration, which has its stream at byte 32.
    unsafe { config.byte_add(32).cast::<u64>().read_unaligned() }
}

hooks! {
    cuLaunchKernel(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) |real| {
        launch(legacy(stream), Kind::Kernel(function), || real(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, extra,
        ))
    }

    cuLaunchKernel_ptsz(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) |real| {
        launch(thread(stream), Kind::Kernel(function), || real(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, extra,
        ))
    }

    cuLaunchKernelEx(config: *const c_void, function: u64, arguments: *mut *mut c_void, extra: *mut *mut c_void) |real| {
        // SAFETY: the caller's configuration.
        let stream = legacy(unsafe { configured(config) });
        launch(stream, Kind::Kernel(function), || real(config, function, arguments, extra))
    }

    cuLaunchKernelEx_ptsz(config: *const c_void, function: u64, arguments: *mut *mut c_void, extra: *mut *mut c_void) |real| {
        // SAFETY: the caller's configuration.
        let stream = thread(unsafe { configured(config) });
        launch(stream, Kind::Kernel(function), || real(config, function, arguments, extra))
    }

    cuLaunchCooperativeKernel(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, arguments: *mut *mut c_void,
    ) |real| {
        launch(legacy(stream), Kind::Kernel(function), || real(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments,
        ))
    }

    cuLaunchCooperativeKernel_ptsz(
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: u64, arguments: *mut *mut c_void,
    ) |real| {
        launch(thread(stream), Kind::Kernel(function), || real(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments,
        ))
    }

    cuLaunchCooperativeKernelMultiDevice(list: *mut c_void, count: u32, flags: u32) |real| {
        launch(LEGACY, Kind::Several, || real(list, count, flags))
    }

    cuLaunch(function: u64) |real| {
        launch(LEGACY, Kind::Kernel(function), || real(function))
    }

    cuLaunchGrid(function: u64, width: i32, height: i32) |real| {
        launch(LEGACY, Kind::Kernel(function), || real(function, width, height))
    }

    cuLaunchGridAsync(function: u64, width: i32, height: i32, stream: u64) |real| {
        launch(legacy(stream), Kind::Kernel(function), || real(function, width, height, stream))
    }

    cuGraphLaunch(exec: u64, stream: u64) |real| {
        let at = legacy(stream);
        graph::launched(exec, || launch(at, Kind::Graph(exec), || real(exec, stream)))
    }

    cuGraphLaunch_ptsz(exec: u64, stream: u64) |real| {
        let at = thread(stream);
        graph::launched(exec, || launch(at, Kind::Graph(exec), || real(exec, stream)))
    }

    cuMemBatchDecompressAsync(list: *mut c_void, count: usize, flags: u32, failed: *mut usize, stream: u64) |real| {
        launch(legacy(stream), Kind::Kernel(2), || real(list, count, flags, failed, stream))
    }

    cuMemBatchDecompressAsync_ptsz(list: *mut c_void, count: usize, flags: u32, failed: *mut usize, stream: u64) |real| {
        launch(thread(stream), Kind::Kernel(2), || real(list, count, flags, failed, stream))
    }
}
