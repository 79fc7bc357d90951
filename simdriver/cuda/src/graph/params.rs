//! What nodes are made of: from the structs of the API and back.

use super::shapes::{
    AllocShape, AnyBody, AnyShape, CopyShape, FillShape, FillShape2, HostShape, KernelShape,
    KernelShape2, WordsShape,
};
use super::{Body, build, with_node};
use crate::abi::{Answer, Code, In, Out, api, input};
use crate::copy::plan::{Fill, Plan};
use crate::event;
use crate::launch::{Request, prepare};
use crate::process::{Call, here, process};
use crate::shapes::{Copy3D, Location, PoolShape};
use crate::stream::calls;
use crate::stream::order::HostCall;

/// A call in the context a node is for, 0 for the current one.
fn within(context: u64) -> Answer<Call> {
    if context == 0 {
        return here();
    }
    let process = process()?;
    let card = process.state().context(context)?.card;
    Ok(Call { process, context, card })
}

pub(super) fn kernel(shape: &KernelShape, context: Option<u64>) -> Answer<Body> {
    let call = within(context.unwrap_or(0))?;
    let request = Request {
        function: shape.function,
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        arguments: shape.arguments,
        extra: shape.extra,
        asked: None,
        cooperative: false,
    };
    Ok(Body::Kernel(prepare(&call, &request)?))
}

pub(super) fn kernel2(shape: &KernelShape2) -> Answer<Body> {
    let mut plain = shape.plain;
    if plain.function == 0 {
        plain.function = shape.kernel;
    }
    kernel(&plain, Some(shape.context))
}

pub(super) fn copying(copy: &Copy3D, context: u64) -> Answer<Body> {
    let process = process()?;
    Ok(Body::Copy(Plan::of(&process.state(), copy)?, context))
}

pub(super) fn filling(shape: &FillShape, context: u64) -> Answer<Body> {
    let process = process()?;
    let fill = Fill {
        address: shape.address,
        pitch: shape.pitch as u64,
        value: shape.value,
        unit: shape.unit,
        width: shape.width as u64,
        height: shape.height as u64,
    };
    if fill.width == 0 || fill.height == 0 {
        return Err(Code::INVALID_VALUE);
    }
    Ok(Body::Fill(fill.checked(&process.state())?, context))
}

pub(super) fn host(shape: &HostShape) -> Answer<Body> {
    let HostShape { function, data } = *shape;
    if function.is_none() {
        return Err(Code::INVALID_VALUE);
    }
    Ok(Body::Host(HostCall { function, data }))
}

pub(super) fn words(shape: &WordsShape) -> Answer<Body> {
    Ok(Body::Words(calls::words(input(shape.operations), shape.count)?))
}

/// The body of a node of any type.
pub(super) fn body(shape: &AnyShape) -> Answer<Body> {
    // SAFETY: the type says which part is in use, every part is plain numbers, and the caller
    // filled in the whole struct.
    unsafe {
        match shape.kind {
            0 => kernel2(&shape.body.kernel),
            1 => copying(&shape.body.copy.copy, shape.body.copy.context),
            2 => filling(&shape.body.fill.fill, shape.body.fill.context),
            3 => host(&shape.body.host),
            4 => build::child(shape.body.handle),
            5 => Ok(Body::Empty),
            6 => Ok(Body::Wait(event::named(shape.body.handle)?)),
            7 => Ok(Body::Record(event::named(shape.body.handle)?)),
            10 => Ok(build::alloc(shape.body.alloc)?.0),
            11 => build::free(shape.body.handle),
            12 => words(&shape.body.operations),
            8 | 9 | 13 => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

fn kernel_shape(body: &Body) -> Answer<KernelShape> {
    let Body::Kernel(launch) = body else { return Err(Code::INVALID_VALUE) };
    Ok(KernelShape {
        function: launch.function,
        grid: launch.grid,
        block: launch.block,
        shared: launch.shared,
        arguments: launch.arguments as *const _,
        extra: launch.extra as *const _,
    })
}

fn kernel_shape2(body: &Body) -> Answer<KernelShape2> {
    let context = if let Body::Kernel(launch) = body { launch.context } else { 0 };
    Ok(KernelShape2 { plain: kernel_shape(body)?, kernel: 0, context })
}

fn copy_shape(body: &Body) -> Answer<Copy3D> {
    let Body::Copy(plan, _) = body else { return Err(Code::INVALID_VALUE) };
    Ok(plan.described())
}

fn fill_shape(body: &Body) -> Answer<FillShape> {
    let Body::Fill(fill, _) = body else { return Err(Code::INVALID_VALUE) };
    let size = |size: u64| usize::try_from(size).map_err(|_| Code::INVALID_VALUE);
    let (width, height) = (size(fill.width)?, size(fill.height)?);
    let (address, pitch) = (fill.address, size(fill.pitch)?);
    Ok(FillShape { address, pitch, value: fill.value, unit: fill.unit, width, height })
}

fn host_shape(body: &Body) -> Answer<HostShape> {
    let Body::Host(HostCall { function, data }) = *body else { return Err(Code::INVALID_VALUE) };
    Ok(HostShape { function, data })
}

fn alloc_shape(body: &Body) -> Answer<AllocShape> {
    let Body::Alloc { card, address, size } = *body else { return Err(Code::INVALID_VALUE) };
    let location = Location { kind: Location::DEVICE, id: i32::try_from(card).unwrap_or(0) };
    let pool = PoolShape {
        kind: 1,
        handles: 0,
        location,
        security: std::ptr::null_mut(),
        most: 0,
        usage: 0,
        rdma: 0,
        reserved: [0; 53],
    };
    let size = usize::try_from(size).map_err(|_| Code::INVALID_VALUE)?;
    Ok(AllocShape { pool, access: std::ptr::null(), count: 0, size, address })
}

/// A node as the struct for any type.
fn any_shape(body: &Body) -> Answer<AnyShape> {
    let mut any = AnyShape {
        kind: body.kind(),
        reserved: [0; 3],
        body: AnyBody { words: [0; 29] },
        reserved_end: 0,
    };
    match body {
        Body::Kernel(_) => any.body.kernel = kernel_shape2(body)?,
        Body::Copy(_, context) => {
            any.body.copy =
                CopyShape { flags: 0, reserved: 0, context: *context, copy: copy_shape(body)? };
        }
        Body::Fill(_, context) => {
            any.body.fill = FillShape2 { fill: fill_shape(body)?, context: *context }
        }
        Body::Host(_) => any.body.host = host_shape(body)?,
        Body::Child(graph) => any.body.handle = *graph,
        Body::Wait(event) | Body::Record(event) => any.body.handle = event.handle,
        Body::Alloc { .. } => any.body.alloc = alloc_shape(body)?,
        Body::Free(address) => any.body.handle = *address,
        Body::Empty | Body::Words(_) => {}
    }
    Ok(any)
}

fn read<T>(node: u64, part: impl FnOnce(&Body) -> Answer<T>) -> Answer<T> {
    let process = process()?;
    with_node(&mut process.state(), node, |node| part(&node.body))
}

/// Changes a node to another body of the same type.
pub(super) fn write(node: u64, body: Body) -> Answer {
    let process = process()?;
    with_node(&mut process.state(), node, |node| {
        if node.body.kind() != body.kind() {
            return Err(Code::INVALID_VALUE);
        }
        node.body = body;
        Ok(())
    })
}

api! {
    fn cuGraphKernelNodeGetParams(node: u64, shape: Out<KernelShape>) { shape.put(read(node, kernel_shape)?) }
    fn cuGraphKernelNodeGetParams_v2(node: u64, shape: Out<KernelShape2>) { shape.put(read(node, kernel_shape2)?) }
    fn cuGraphKernelNodeSetParams(node: u64, shape: In<KernelShape>) { write(node, kernel(&shape.get()?, None)?) }
    fn cuGraphKernelNodeSetParams_v2(node: u64, shape: In<KernelShape2>) { write(node, kernel2(&shape.get()?)?) }
    fn cuGraphMemcpyNodeGetParams(node: u64, shape: Out<Copy3D>) { shape.put(read(node, copy_shape)?) }
    fn cuGraphMemcpyNodeSetParams(node: u64, shape: In<Copy3D>) {
        let context = read(node, |body| if let Body::Copy(_, context) = body { Ok(*context) } else { Err(Code::INVALID_VALUE) })?;
        write(node, copying(&shape.get()?, context)?)
    }
    fn cuGraphMemsetNodeGetParams(node: u64, shape: Out<FillShape>) { shape.put(read(node, fill_shape)?) }
    fn cuGraphMemsetNodeSetParams(node: u64, shape: In<FillShape>) {
        let context = read(node, |body| if let Body::Fill(_, context) = body { Ok(*context) } else { Err(Code::INVALID_VALUE) })?;
        write(node, filling(&shape.get()?, context)?)
    }
    fn cuGraphHostNodeGetParams(node: u64, shape: Out<HostShape>) { shape.put(read(node, host_shape)?) }
    fn cuGraphHostNodeSetParams(node: u64, shape: In<HostShape>) { write(node, host(&shape.get()?)?) }
    fn cuGraphBatchMemOpNodeSetParams(node: u64, shape: In<WordsShape>) { write(node, words(&shape.get()?)?) }
    fn cuGraphMemAllocNodeGetParams(node: u64, shape: Out<AllocShape>) { shape.put(read(node, alloc_shape)?) }

    fn cuGraphMemFreeNodeGetParams(node: u64, address: Out<u64>) {
        address.put(read(node, |body| if let Body::Free(address) = body { Ok(*address) } else { Err(Code::INVALID_VALUE) })?)
    }

    fn cuGraphChildGraphNodeGetGraph(node: u64, graph: Out<u64>) {
        graph.put(read(node, |body| if let Body::Child(graph) = body { Ok(*graph) } else { Err(Code::INVALID_VALUE) })?)
    }

    fn cuGraphEventRecordNodeGetEvent(node: u64, event: Out<u64>) {
        event.put(read(node, |body| if let Body::Record(event) = body { Ok(event.handle) } else { Err(Code::INVALID_VALUE) })?)
    }

    fn cuGraphEventWaitNodeGetEvent(node: u64, event: Out<u64>) {
        event.put(read(node, |body| if let Body::Wait(event) = body { Ok(event.handle) } else { Err(Code::INVALID_VALUE) })?)
    }

    fn cuGraphEventRecordNodeSetEvent(node: u64, event: u64) { write(node, Body::Record(event::named(event)?)) }
    fn cuGraphEventWaitNodeSetEvent(node: u64, event: u64) { write(node, Body::Wait(event::named(event)?)) }

    fn cuGraphNodeGetParams(node: u64, shape: Out<AnyShape>) { shape.put(read(node, any_shape)?) }
    fn cuGraphNodeSetParams, cuGraphNodeSetParams_v2(node: u64, shape: In<AnyShape>) {
        let shape = shape.get()?;
        if matches!(shape.kind, 4 | 10 | 11) { return Err(Code::NOT_SUPPORTED); }
        write(node, body(&shape)?)
    }

    // Attributes of kernel nodes: none changes what is simulated, so none is kept.
    fn cuGraphKernelNodeCopyAttributes(to: u64, from: u64) {
        read(from, kernel_shape)?;
        read(to, kernel_shape).map(|_| ())
    }

    fn cuGraphKernelNodeGetAttribute(node: u64, attribute: u32, value: Out<[u64; 8]>) {
        read(node, kernel_shape)?;
        if attribute > 18 { return Err(Code::INVALID_VALUE); }
        value.put([0; 8])
    }

    fn cuGraphKernelNodeSetAttribute(node: u64, attribute: u32, value: In<[u64; 8]>) {
        read(node, kernel_shape)?;
        value.get()?;
        if attribute > 18 { return Err(Code::INVALID_VALUE); }
        Ok(())
    }
}
