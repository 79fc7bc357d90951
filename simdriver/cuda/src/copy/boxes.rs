//! Copies of boxes: rows and layers.

use super::plan::Plan;
use super::{later, now};
use crate::abi::{Answer, In, Lane, api};
use crate::process::{Call, meant};
use crate::shapes::{Copy2D, Copy2DOld, Copy3D, Copy3DOld};

fn plan<T: Copy + Into<Copy3D>>(copy: In<T>) -> impl FnOnce(&Call) -> Answer<Plan> {
    move |call| Plan::of(&call.state(), &copy.get()?.into())
}

api! {
    fn cuMemcpy2D_v2, cuMemcpy2DUnaligned_v2 | cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned_v2_ptds(lane, copy: In<Copy2D>) { now(lane, plan(copy)) }
    fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(lane, copy: In<Copy2D>, stream: u64) { later(meant(stream, lane), plan(copy)) }
    fn cuMemcpy2D, cuMemcpy2DUnaligned(copy: In<Copy2DOld>) { now(Lane::Legacy, plan(copy)) }
    fn cuMemcpy2DAsync(copy: In<Copy2DOld>, stream: u64) { later(stream, plan(copy)) }

    fn cuMemcpy3D_v2, cuMemcpy3DPeer | cuMemcpy3D_v2_ptds, cuMemcpy3DPeer_ptds(lane, copy: In<Copy3D>) { now(lane, plan(copy)) }
    fn cuMemcpy3DAsync_v2, cuMemcpy3DPeerAsync | cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DPeerAsync_ptsz(lane, copy: In<Copy3D>, stream: u64) {
        later(meant(stream, lane), plan(copy))
    }
    fn cuMemcpy3D(copy: In<Copy3DOld>) { now(Lane::Legacy, plan(copy)) }
    fn cuMemcpy3DAsync(copy: In<Copy3DOld>, stream: u64) { later(stream, plan(copy)) }
}
