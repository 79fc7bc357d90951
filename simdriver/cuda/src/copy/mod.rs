//! Copies and fills: they really move bytes, in the order of their streams.

pub(crate) mod arrays;
pub(crate) mod batch;
pub(crate) mod boxes;
pub(crate) mod fill;
pub(crate) mod linear;
pub(crate) mod plan;

use plan::Plan;

use crate::abi::{Answer, Code, Lane};
use crate::process::{here, meant};
use crate::stream::find;
use crate::stream::order::{Order, issue, issue_for_waiter};

/// Copies, and comes back when it is done.
fn now(lane: Lane, plan: impl FnOnce(&crate::process::Call) -> Answer<Plan>) -> Answer {
    let call = here()?;
    let stream = find(&call, meant(0, lane))?;
    if stream.member().is_some() {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let plan = plan(&call)?;
    if plan.bytes() == 0 {
        return Ok(());
    }
    issue_for_waiter(&call, &stream, Order::Copy(plan))?;
    stream.synchronize(call.process)
}

/// Copies in the order of a stream. A source that the device cannot reach is read before this
/// comes back, and a target that it cannot reach is written before.
fn later(stream: u64, plan: impl FnOnce(&crate::process::Call) -> Answer<Plan>) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    let plan = plan(&call)?;
    if plan.bytes() == 0 {
        return Ok(());
    }
    if stream.member().is_some() {
        return issue(&call, &stream, Order::Copy(plan));
    }
    let pageable_target = plan.dst.host && !plan.dst.pinned;
    issue(&call, &stream, Order::Copy(plan.stage()?))?;
    if pageable_target { stream.synchronize(call.process) } else { Ok(()) }
}
