//! Fills.

use super::plan::Fill;
use crate::abi::{Answer, Lane, api};
use crate::process::{here, meant};
use crate::stream::find;
use crate::stream::order::{Order, issue};

/// Fills in the order of a stream. The forms without a stream do not wait either: what they fill
/// is the device's.
fn fill(stream: u64, fill: Fill) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    let fill = fill.checked(&call.state())?;
    if fill.width == 0 || fill.height == 0 {
        return Ok(());
    }
    issue(&call, &stream, Order::Fill(fill))
}

fn row(address: u64, value: u32, unit: u32, count: u64) -> Fill {
    Fill { address, pitch: 0, value, unit, width: count, height: 1 }
}

fn rows(address: u64, pitch: u64, value: u32, unit: u32, width: u64, height: u64) -> Fill {
    Fill { address, pitch, value, unit, width, height }
}

api! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(lane, dst: u64, value: u8, count: usize) { fill(meant(0, lane), row(dst, value.into(), 1, count as u64)) }
    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(lane, dst: u64, value: u16, count: usize) { fill(meant(0, lane), row(dst, value.into(), 2, count as u64)) }
    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(lane, dst: u64, value: u32, count: usize) { fill(meant(0, lane), row(dst, value, 4, count as u64)) }
    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(lane, dst: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill(meant(0, lane), rows(dst, pitch as u64, value.into(), 1, width as u64, height as u64))
    }
    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(lane, dst: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill(meant(0, lane), rows(dst, pitch as u64, value.into(), 2, width as u64, height as u64))
    }
    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(lane, dst: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill(meant(0, lane), rows(dst, pitch as u64, value, 4, width as u64, height as u64))
    }

    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(lane, dst: u64, value: u8, count: usize, stream: u64) { fill(meant(stream, lane), row(dst, value.into(), 1, count as u64)) }
    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(lane, dst: u64, value: u16, count: usize, stream: u64) { fill(meant(stream, lane), row(dst, value.into(), 2, count as u64)) }
    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(lane, dst: u64, value: u32, count: usize, stream: u64) { fill(meant(stream, lane), row(dst, value, 4, count as u64)) }
    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(lane, dst: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64) {
        fill(meant(stream, lane), rows(dst, pitch as u64, value.into(), 1, width as u64, height as u64))
    }
    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(lane, dst: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64) {
        fill(meant(stream, lane), rows(dst, pitch as u64, value.into(), 2, width as u64, height as u64))
    }
    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(lane, dst: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64) {
        fill(meant(stream, lane), rows(dst, pitch as u64, value, 4, width as u64, height as u64))
    }

    fn cuMemsetD8(dst: u32, value: u8, count: u32) { fill(meant(0, Lane::Legacy), row(dst.into(), value.into(), 1, count.into())) }
    fn cuMemsetD16(dst: u32, value: u16, count: u32) { fill(meant(0, Lane::Legacy), row(dst.into(), value.into(), 2, count.into())) }
    fn cuMemsetD32(dst: u32, value: u32, count: u32) { fill(meant(0, Lane::Legacy), row(dst.into(), value, 4, count.into())) }
    fn cuMemsetD2D8(dst: u32, pitch: u32, value: u8, width: u32, height: u32) { fill(1, rows(dst.into(), pitch.into(), value.into(), 1, width.into(), height.into())) }
    fn cuMemsetD2D16(dst: u32, pitch: u32, value: u16, width: u32, height: u32) { fill(1, rows(dst.into(), pitch.into(), value.into(), 2, width.into(), height.into())) }
    fn cuMemsetD2D32(dst: u32, pitch: u32, value: u32, width: u32, height: u32) { fill(1, rows(dst.into(), pitch.into(), value, 4, width.into(), height.into())) }
}
