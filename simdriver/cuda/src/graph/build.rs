//! Making graphs: nodes, edges, copies.

use super::shapes::{
    AllocShape, AnyShape, FillShape, HostShape, KernelShape, KernelShape2, WordsShape,
};
use super::{Body, Graph, add, copy, memory, params, remove};
use crate::abi::{Answer, Code, In, Opaque, Out, api};
use crate::event;
use crate::memory::space::What;
use crate::process::{Kind, process};
use crate::shapes::Copy3D;

/// Makes a graph.
pub(crate) fn create() -> Answer<u64> {
    let process = process()?;
    let mut state = process.state();
    let handle = state.handle(Kind::Graph);
    state.graphs.insert(handle, Graph::default());
    Ok(handle)
}

/// Adds a node with a body.
fn put(
    node: Out<u64>,
    graph: u64,
    before: In<u64>,
    count: usize,
    body: impl FnOnce() -> Answer<Body>,
) -> Answer {
    node.check()?;
    let process = process()?;
    if !process.state().graphs.contains_key(&graph) {
        return Err(Code::INVALID_VALUE);
    }
    let before = if count == 0 { Vec::new() } else { before.all(count)? };
    let body = body()?;
    node.put(add(&mut process.state(), graph, &before, body)?)
}

/// A child node has a copy of the graph it was given.
pub(super) fn child(graph: u64) -> Answer<Body> {
    let process = process()?;
    Ok(Body::Child(copy(&mut process.state(), graph, true)?))
}

/// Memory of a node: its address is told at once.
pub(super) fn alloc(shape: AllocShape) -> Answer<(Body, u64)> {
    let process = process()?;
    let context = crate::process::current(process).unwrap_or(0);
    let (card, _) = process.card(shape.pool.location.id)?;
    if shape.pool.location.kind != crate::shapes::Location::DEVICE {
        return Err(Code::NOT_SUPPORTED);
    }
    let size = shape.size as u64;
    let address = memory::address(&mut process.state(), card, context, size)?;
    Ok((Body::Alloc { card, address, size }, address))
}

pub(super) fn free(address: u64) -> Answer<Body> {
    let process = process()?;
    match process.state().space.starting(address)?.what {
        What::Graph => Ok(Body::Free(address)),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// A node of any type; what it allocates is written back.
fn put_any(
    node: Out<u64>,
    graph: u64,
    before: In<u64>,
    count: usize,
    shape: Out<AnyShape>,
) -> Answer {
    let mut any = shape.get()?;
    put(node, graph, before, count, || {
        let body = params::body(&any)?;
        if let Body::Alloc { address, .. } = body {
            any.body.alloc.address = address;
        }
        Ok(body)
    })?;
    if any.kind == 10 {
        shape.put(any)?;
    }
    Ok(())
}

/// Adds edges, or takes them away.
fn edges(graph: u64, from: In<u64>, to: In<u64>, count: usize, there: bool) -> Answer {
    let process = process()?;
    let mut state = process.state();
    let graph = state.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
    for index in 0..count {
        let edge = (from.at(index)?, to.at(index)?);
        let known = graph.edges.contains(&edge);
        let nodes = graph.node(edge.0).is_some() && graph.node(edge.1).is_some();
        if !nodes || edge.0 == edge.1 || known == there {
            return Err(Code::INVALID_VALUE);
        }
        if there {
            if graph.ancestors(&[edge.0]).contains(&edge.1) {
                return Err(Code::INVALID_VALUE);
            }
            graph.edges.push(edge);
        } else {
            graph.edges.retain(|other| *other != edge);
        }
    }
    Ok(())
}

api! {
    fn cuGraphCreate(graph: Out<u64>, flags: u32) {
        graph.check()?;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        graph.put(create()?)
    }

    fn cuGraphDestroy(graph: u64) {
        let process = process()?;
        let removed = {
            let mut state = process.state();
            if state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.child { return Err(Code::INVALID_VALUE); }
            remove(&mut state, graph)?
        };
        for (object, count) in removed.objects {
            crate::objects::let_go(process, object, count)?;
        }
        Ok(())
    }

    fn cuGraphDestroyNode(node: u64) {
        let process = process()?;
        let mut state = process.state();
        let graph = *state.node_graphs.get(&node).ok_or(Code::INVALID_VALUE)?;
        let found = state.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
        // Memory that one node allocates and another frees cannot lose one of them.
        if found.node(node).is_some_and(|node| matches!(node.body, Body::Alloc { .. } | Body::Free(_))) {
            return Err(Code::NOT_SUPPORTED);
        }
        found.nodes.retain(|other| other.handle != node);
        found.edges.retain(|(from, to)| *from != node && *to != node);
        state.node_graphs.remove(&node);
        Ok(())
    }

    fn cuGraphClone(clone: Out<u64>, graph: u64) {
        clone.check()?;
        let process = process()?;
        clone.put(copy(&mut process.state(), graph, false)?)
    }

    fn cuGraphAddKernelNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, shape: In<KernelShape>) {
        put(node, graph, before, count, || params::kernel(&shape.get()?, None))
    }

    fn cuGraphAddKernelNode_v2(node: Out<u64>, graph: u64, before: In<u64>, count: usize, shape: In<KernelShape2>) {
        put(node, graph, before, count, || params::kernel2(&shape.get()?))
    }

    fn cuGraphAddMemcpyNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, shape: In<Copy3D>, context: u64) {
        put(node, graph, before, count, || params::copying(&shape.get()?, context))
    }

    fn cuGraphAddMemsetNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, shape: In<FillShape>, context: u64) {
        put(node, graph, before, count, || params::filling(&shape.get()?, context))
    }

    fn cuGraphAddHostNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, shape: In<HostShape>) {
        put(node, graph, before, count, || params::host(&shape.get()?))
    }

    fn cuGraphAddChildGraphNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, inner: u64) {
        if inner == graph { return Err(Code::INVALID_VALUE); }
        put(node, graph, before, count, || child(inner))
    }

    fn cuGraphAddEmptyNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize) {
        put(node, graph, before, count, || Ok(Body::Empty))
    }

    fn cuGraphAddEventRecordNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, event: u64) {
        put(node, graph, before, count, || Ok(Body::Record(event::named(event)?)))
    }

    fn cuGraphAddEventWaitNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, event: u64) {
        put(node, graph, before, count, || Ok(Body::Wait(event::named(event)?)))
    }

    fn cuGraphAddMemAllocNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, shape: Out<AllocShape>) {
        let mut asked = shape.get()?;
        put(node, graph, before, count, || {
            let (body, address) = alloc(asked)?;
            asked.address = address;
            Ok(body)
        })?;
        shape.put(asked)
    }

    fn cuGraphAddMemFreeNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, address: u64) {
        put(node, graph, before, count, || free(address))
    }

    fn cuGraphAddBatchMemOpNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, shape: In<WordsShape>) {
        put(node, graph, before, count, || params::words(&shape.get()?))
    }

    fn cuGraphAddNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, shape: Out<AnyShape>) {
        put_any(node, graph, before, count, shape)
    }

    fn cuGraphAddNode_v2, cuGraphAddNode_v3(node: Out<u64>, graph: u64, before: In<u64>, data: Opaque, count: usize, shape: Out<AnyShape>) {
        let _ = data;
        put_any(node, graph, before, count, shape)
    }

    fn cuGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) { edges(graph, from, to, count, true) }
    fn cuGraphRemoveDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) { edges(graph, from, to, count, false) }
    fn cuGraphAddDependencies_v2(graph: u64, from: In<u64>, to: In<u64>, data: Opaque, count: usize) {
        let _ = data;
        edges(graph, from, to, count, true)
    }
    fn cuGraphRemoveDependencies_v2(graph: u64, from: In<u64>, to: In<u64>, data: Opaque, count: usize) {
        let _ = data;
        edges(graph, from, to, count, false)
    }
}
