//! Copies of bytes in a row from and to arrays.

use super::linear::{device, host};
use super::plan::{End, Plan};
use super::{later, now};
use crate::abi::{Answer, Code, Lane, api};
use crate::process::{Call, meant};

fn array(call: &Call, handle: u64, offset: usize, bytes: usize) -> Answer<End> {
    let state = call.state();
    let array = state.arrays.get(&handle).ok_or(Code::INVALID_HANDLE)?;
    array.bytes(offset as u64, bytes as u64)
}

fn to_array(
    dst: u64,
    at: usize,
    src: u64,
    bytes: usize,
    from: fn(&Call, u64, usize) -> Answer<End>,
) -> impl FnOnce(&Call) -> Answer<Plan> {
    move |call| Ok(Plan::linear(from(call, src, bytes)?, array(call, dst, at, bytes)?, bytes))
}

fn from_array(
    dst: u64,
    src: u64,
    at: usize,
    bytes: usize,
    to: fn(&Call, u64, usize) -> Answer<End>,
) -> impl FnOnce(&Call) -> Answer<Plan> {
    move |call| Ok(Plan::linear(array(call, src, at, bytes)?, to(call, dst, bytes)?, bytes))
}

fn between(
    dst: u64,
    to: usize,
    src: u64,
    from: usize,
    bytes: usize,
) -> impl FnOnce(&Call) -> Answer<Plan> {
    move |call| {
        Ok(Plan::linear(array(call, src, from, bytes)?, array(call, dst, to, bytes)?, bytes))
    }
}

api! {
    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds(lane, dst: u64, at: usize, src: u64, bytes: usize) { now(lane, to_array(dst, at, src, bytes, device)) }
    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds(lane, dst: u64, at: usize, src: u64, bytes: usize) { now(lane, to_array(dst, at, src, bytes, host)) }
    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds(lane, dst: u64, src: u64, at: usize, bytes: usize) { now(lane, from_array(dst, src, at, bytes, device)) }
    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds(lane, dst: u64, src: u64, at: usize, bytes: usize) { now(lane, from_array(dst, src, at, bytes, host)) }
    fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds(lane, dst: u64, to: usize, src: u64, from: usize, bytes: usize) { now(lane, between(dst, to, src, from, bytes)) }

    fn cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz(lane, dst: u64, at: usize, src: u64, bytes: usize, stream: u64) {
        later(meant(stream, lane), to_array(dst, at, src, bytes, host))
    }
    fn cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz(lane, dst: u64, src: u64, at: usize, bytes: usize, stream: u64) {
        later(meant(stream, lane), from_array(dst, src, at, bytes, host))
    }

    fn cuMemcpyDtoA(dst: u64, at: u32, src: u32, bytes: u32) { now(Lane::Legacy, to_array(dst, at as usize, src.into(), bytes as usize, device)) }
    fn cuMemcpyHtoA(dst: u64, at: u32, src: u64, bytes: u32) { now(Lane::Legacy, to_array(dst, at as usize, src, bytes as usize, host)) }
    fn cuMemcpyAtoD(dst: u32, src: u64, at: u32, bytes: u32) { now(Lane::Legacy, from_array(dst.into(), src, at as usize, bytes as usize, device)) }
    fn cuMemcpyAtoH(dst: u64, src: u64, at: u32, bytes: u32) { now(Lane::Legacy, from_array(dst, src, at as usize, bytes as usize, host)) }
    fn cuMemcpyAtoA(dst: u64, to: u32, src: u64, from: u32, bytes: u32) { now(Lane::Legacy, between(dst, to as usize, src, from as usize, bytes as usize)) }
    fn cuMemcpyHtoAAsync(dst: u64, at: u32, src: u64, bytes: u32, stream: u64) { later(stream, to_array(dst, at as usize, src, bytes as usize, host)) }
    fn cuMemcpyAtoHAsync(dst: u64, src: u64, at: u32, bytes: u32, stream: u64) { later(stream, from_array(dst, src, at as usize, bytes as usize, host)) }
}
