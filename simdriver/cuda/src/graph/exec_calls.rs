//! The calls on graphs that are ready to launch.

use std::sync::{Arc, Mutex};

use super::exec::{self, Exec, Mismatch};
use super::shapes::{
    AnyShape, FillShape, HostShape, InstantiateShape, KernelShape, KernelShape2, UpdateShape,
    WordsShape,
};
use super::{Body, params};
use crate::abi::{Answer, Code, In, Lane, Opaque, Out, api};
use crate::event;
use crate::process::{here, lock, meant, process};
use crate::shapes::Copy3D;
use crate::stream::find;

fn find_exec(handle: u64) -> Answer<Arc<Mutex<Exec>>> {
    process()?.state().execs.get(&handle).cloned().ok_or(Code::INVALID_VALUE)
}

/// Changes what one step does.
fn change(handle: u64, node: u64, body: Body) -> Answer {
    let exec = find_exec(handle)?;
    let mut exec = lock(&exec);
    let step = exec.steps.iter_mut().find(|step| step.node == node).ok_or(Code::INVALID_VALUE)?;
    if step.body.kind() != body.kind() {
        return Err(Code::INVALID_VALUE);
    }
    step.body = body;
    Ok(())
}

fn instantiate(to: Out<u64>, graph: u64, flags: u64) -> Answer {
    to.check()?;
    if flags & !0xf != 0 {
        return Err(Code::INVALID_VALUE);
    }
    to.put(exec::instantiate(process()?, graph, flags)?)
}

fn instantiate_with(lane: Lane, to: Out<u64>, graph: u64, shape: Out<InstantiateShape>) -> Answer {
    const UPLOAD: u64 = 2;
    let mut asked = shape.get()?;
    let made = instantiate(to, graph, asked.flags);
    (asked.failed, asked.result) = (0, u32::from(made.is_err()));
    shape.put(asked)?;
    made?;
    if asked.flags & UPLOAD != 0 {
        let call = here()?;
        find(&call, meant(asked.stream, lane))?;
        exec::upload(call.process, &*find_exec(to.get()?)?)?;
    }
    Ok(())
}

/// For the functions that only say something if it goes wrong.
fn instantiate_old(to: Out<u64>, graph: u64, failed: Out<u64>) -> Answer {
    failed.put_if(0);
    instantiate(to, graph, 0)
}

fn set_enabled(handle: u64, node: u64, enabled: bool) -> Answer {
    let exec = find_exec(handle)?;
    let mut exec = lock(&exec);
    let step = exec.steps.iter_mut().find(|step| step.node == node).ok_or(Code::INVALID_VALUE)?;
    if step.body.kind() > 2 {
        return Err(Code::INVALID_VALUE);
    }
    step.enabled = enabled;
    Ok(())
}

api! {
    fn cuGraphInstantiate, cuGraphInstantiate_v2(to: Out<u64>, graph: u64, failed: Out<u64>, log: Opaque, room: usize) {
        let _ = (log, room);
        instantiate_old(to, graph, failed)
    }

    fn cuGraphInstantiateWithFlags(to: Out<u64>, graph: u64, flags: u64) { instantiate(to, graph, flags) }

    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(lane, to: Out<u64>, graph: u64, shape: Out<InstantiateShape>) {
        instantiate_with(lane, to, graph, shape)
    }

    fn cuGraphUpload | cuGraphUpload_ptsz(lane, graph: u64, stream: u64) {
        let call = here()?;
        find(&call, meant(stream, lane))?;
        exec::upload(call.process, &*find_exec(graph)?)
    }

    fn cuGraphLaunch | cuGraphLaunch_ptsz(lane, graph: u64, stream: u64) {
        let call = here()?;
        let stream = find(&call, meant(stream, lane))?;
        let exec = find_exec(graph)?;
        if stream.member().is_some() { return Err(Code::STREAM_CAPTURE_UNSUPPORTED); }
        exec::launch(&call, &exec, &stream)
    }

    fn cuGraphExecDestroy(graph: u64) {
        process()?.state().execs.remove(&graph).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    fn cuGraphExecGetFlags(graph: u64, flags: Out<u64>) { flags.put(lock(&*find_exec(graph)?).flags) }
    fn cuGraphExecGetId(graph: u64, id: Out<u32>) { id.put(lock(&*find_exec(graph)?).number) }

    fn cuGraphExecUpdate(handle: u64, graph: u64, failed: Out<u64>, result: Out<u32>) {
        let exec = find_exec(handle)?;
        match exec::update(process()?, &exec, graph)? {
            Ok(()) => { result.put_if(0); failed.put_if(0); Ok(()) }
            Err(Mismatch(why, node)) => { result.put_if(why); failed.put_if(node); Err(Code::GRAPH_EXEC_UPDATE_FAILURE) }
        }
    }

    fn cuGraphExecUpdate_v2(handle: u64, graph: u64, result: Out<UpdateShape>) {
        let exec = find_exec(handle)?;
        match exec::update(process()?, &exec, graph)? {
            Ok(()) => { result.put_if(UpdateShape { result: 0, node: 0, from: 0 }); Ok(()) }
            Err(Mismatch(why, node)) => {
                result.put_if(UpdateShape { result: why, node, from: 0 });
                Err(Code::GRAPH_EXEC_UPDATE_FAILURE)
            }
        }
    }

    fn cuGraphExecKernelNodeSetParams(graph: u64, node: u64, shape: In<KernelShape>) { change(graph, node, params::kernel(&shape.get()?, None)?) }
    fn cuGraphExecKernelNodeSetParams_v2(graph: u64, node: u64, shape: In<KernelShape2>) { change(graph, node, params::kernel2(&shape.get()?)?) }
    fn cuGraphExecMemcpyNodeSetParams(graph: u64, node: u64, shape: In<Copy3D>, context: u64) { change(graph, node, params::copying(&shape.get()?, context)?) }
    fn cuGraphExecMemsetNodeSetParams(graph: u64, node: u64, shape: In<FillShape>, context: u64) { change(graph, node, params::filling(&shape.get()?, context)?) }
    fn cuGraphExecHostNodeSetParams(graph: u64, node: u64, shape: In<HostShape>) { change(graph, node, params::host(&shape.get()?)?) }
    fn cuGraphExecBatchMemOpNodeSetParams(graph: u64, node: u64, shape: In<WordsShape>) { change(graph, node, params::words(&shape.get()?)?) }
    fn cuGraphExecEventRecordNodeSetEvent(graph: u64, node: u64, event: u64) { change(graph, node, Body::Record(event::named(event)?)) }
    fn cuGraphExecEventWaitNodeSetEvent(graph: u64, node: u64, event: u64) { change(graph, node, Body::Wait(event::named(event)?)) }

    fn cuGraphExecNodeSetParams(graph: u64, node: u64, shape: In<AnyShape>) {
        let shape = shape.get()?;
        if matches!(shape.kind, 4 | 10 | 11) { return Err(Code::NOT_SUPPORTED); }
        change(graph, node, params::body(&shape)?)
    }

    fn cuGraphNodeSetEnabled(graph: u64, node: u64, enabled: u32) { set_enabled(graph, node, enabled != 0) }

    fn cuGraphNodeGetEnabled(graph: u64, node: u64, enabled: Out<u32>) {
        let exec = find_exec(graph)?;
        let exec = lock(&exec);
        let step = exec.steps.iter().find(|step| step.node == node).ok_or(Code::INVALID_VALUE)?;
        enabled.put(u32::from(step.enabled))
    }
}
