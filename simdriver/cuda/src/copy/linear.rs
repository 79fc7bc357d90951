//! Copies of bytes in a row.

use super::plan::{End, Plan};
use super::{later, now};
use crate::abi::{Answer, Code, api};
use crate::process::{Call, meant};

fn end(address: u64, host: bool, pinned: bool) -> End {
    End { address, pitch: 0, layer: 0, host, pinned, array: false }
}

/// Memory of the device.
pub(super) fn device(call: &Call, address: u64, bytes: usize) -> Answer<End> {
    let (host, pinned) = call.state().space.reach(address, bytes as u64, false)?;
    Ok(end(address, host, pinned))
}

/// Memory of the host.
pub(super) fn host(call: &Call, address: u64, bytes: usize) -> Answer<End> {
    if address == 0 && bytes > 0 {
        return Err(Code::INVALID_VALUE);
    }
    Ok(end(address, true, call.state().space.is_pinned(address)))
}

/// Any memory: the address tells.
pub(super) fn any(call: &Call, address: u64, bytes: usize) -> Answer<End> {
    if address == 0 && bytes > 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (host, pinned) = call.state().space.reach(address, bytes as u64, true)?;
    Ok(end(address, host, pinned))
}

type Find = fn(&Call, u64, usize) -> Answer<End>;

fn plan(
    from: Find,
    to: Find,
    dst: u64,
    src: u64,
    bytes: usize,
) -> impl FnOnce(&Call) -> Answer<Plan> {
    move |call| Ok(Plan::linear(from(call, src, bytes)?, to(call, dst, bytes)?, bytes))
}

api! {
    fn cuMemcpy | cuMemcpy_ptds(lane, dst: u64, src: u64, bytes: usize) { now(lane, plan(any, any, dst, src, bytes)) }
    fn cuMemcpyAsync | cuMemcpyAsync_ptsz(lane, dst: u64, src: u64, bytes: usize, stream: u64) {
        later(meant(stream, lane), plan(any, any, dst, src, bytes))
    }

    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(lane, dst: u64, src: u64, bytes: usize) { now(lane, plan(host, device, dst, src, bytes)) }
    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(lane, dst: u64, src: u64, bytes: usize) { now(lane, plan(device, host, dst, src, bytes)) }
    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(lane, dst: u64, src: u64, bytes: usize) { now(lane, plan(device, device, dst, src, bytes)) }

    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(lane, dst: u64, src: u64, bytes: usize, stream: u64) {
        later(meant(stream, lane), plan(host, device, dst, src, bytes))
    }
    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(lane, dst: u64, src: u64, bytes: usize, stream: u64) {
        later(meant(stream, lane), plan(device, host, dst, src, bytes))
    }
    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(lane, dst: u64, src: u64, bytes: usize, stream: u64) {
        later(meant(stream, lane), plan(device, device, dst, src, bytes))
    }

    // Before CUDA 3.2 device addresses and sizes had 32 bits.
    fn cuMemcpyHtoD(dst: u32, src: u64, bytes: u32) { now(crate::abi::Lane::Legacy, plan(host, device, dst.into(), src, bytes as usize)) }
    fn cuMemcpyDtoH(dst: u64, src: u32, bytes: u32) { now(crate::abi::Lane::Legacy, plan(device, host, dst, src.into(), bytes as usize)) }
    fn cuMemcpyDtoD(dst: u32, src: u32, bytes: u32) { now(crate::abi::Lane::Legacy, plan(device, device, dst.into(), src.into(), bytes as usize)) }
    fn cuMemcpyHtoDAsync(dst: u32, src: u64, bytes: u32, stream: u64) { later(stream, plan(host, device, dst.into(), src, bytes as usize)) }
    fn cuMemcpyDtoHAsync(dst: u64, src: u32, bytes: u32, stream: u64) { later(stream, plan(device, host, dst, src.into(), bytes as usize)) }
    fn cuMemcpyDtoDAsync(dst: u32, src: u32, bytes: u32, stream: u64) { later(stream, plan(device, device, dst.into(), src.into(), bytes as usize)) }

    // Addresses are the same in all contexts.
    fn cuMemcpyPeer | cuMemcpyPeer_ptds(lane, dst: u64, dst_context: u64, src: u64, src_context: u64, bytes: usize) {
        contexts(dst_context, src_context)?;
        now(lane, plan(device, device, dst, src, bytes))
    }
    fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz(lane, dst: u64, dst_context: u64, src: u64, src_context: u64, bytes: usize, stream: u64) {
        contexts(dst_context, src_context)?;
        later(meant(stream, lane), plan(device, device, dst, src, bytes))
    }
}

fn contexts(one: u64, other: u64) -> Answer {
    let process = crate::process::process()?;
    let state = process.state();
    state.context(one)?;
    state.context(other).map(|_| ())
}
