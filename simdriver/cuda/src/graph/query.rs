//! What can be asked about graphs.

use std::fmt::Write as _;

use super::{Graph, graph_of, with_node};
use crate::abi::{Answer, Code, Out, Text, api};
use crate::process::process;

/// Data of an edge: all edges are plain.
type EdgeData = [u8; 8];

/// Tells how many there are; or, where there is room, which, and then how many were told.
fn list(values: &[u64], to: Out<u64>, count: Out<usize>) -> Answer {
    if to.is_null() {
        return count.put(values.len());
    }
    let room = count.get()?;
    to.put_all(values.iter().copied(), room)?;
    // The rest of the room is filled with nothing.
    if room > values.len() {
        let rest = std::iter::repeat_n(0, room - values.len());
        to.put_all(values.iter().copied().chain(rest), room)?;
    }
    count.put(values.len().min(room))
}

fn ask<T>(graph: u64, work: impl FnOnce(&Graph) -> Answer<T>) -> Answer<T> {
    let process = process()?;
    let state = process.state();
    work(state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?)
}

fn edges(
    graph: u64,
    from: Out<u64>,
    to: Out<u64>,
    data: Option<Out<EdgeData>>,
    count: Out<usize>,
) -> Answer {
    ask(graph, |graph| {
        if from.is_null() && to.is_null() {
            return count.put(graph.edges.len());
        }
        let room = count.get()?;
        from.put_all(graph.edges.iter().map(|edge| edge.0), room)?;
        to.put_all(graph.edges.iter().map(|edge| edge.1), room)?;
        if let Some(data) = data.filter(|data| !data.is_null()) {
            data.put_all(graph.edges.iter().map(|_| [0; 8]), room)?;
        }
        count.put(graph.edges.len().min(room))
    })
}

fn neighbours(
    node: u64,
    to: Out<u64>,
    data: Option<Out<EdgeData>>,
    count: Out<usize>,
    before: bool,
) -> Answer {
    let process = process()?;
    let state = process.state();
    let graph = graph_of(&state, node)?;
    let all: Vec<u64> =
        if before { graph.before(node).collect() } else { graph.after(node).collect() };
    if let Some(data) = data.filter(|data| !data.is_null() && !to.is_null()) {
        data.put_all(all.iter().map(|_| [0; 8]), count.get()?)?;
    }
    list(&all, to, count)
}

/// The graph in the language of graphviz.
fn dot(graph: &Graph) -> String {
    let mut text = String::from("digraph {\n");
    for node in &graph.nodes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  n{} [label=\"type {}\"];", node.handle, node.body.kind());
    }
    for (from, to) in &graph.edges {
        let _ = writeln!(text, "  n{from} -> n{to};");
    }
    text + "}\n"
}

api! {
    fn cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        ask(graph, |graph| list(&graph.nodes.iter().map(|node| node.handle).collect::<Vec<_>>(), nodes, count))
    }

    fn cuGraphGetRootNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        ask(graph, |graph| {
            let roots = graph.nodes.iter().map(|node| node.handle).filter(|node| graph.before(*node).next().is_none());
            list(&roots.collect::<Vec<_>>(), nodes, count)
        })
    }

    fn cuGraphGetEdges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) { edges(graph, from, to, None, count) }
    fn cuGraphGetEdges_v2(graph: u64, from: Out<u64>, to: Out<u64>, data: Out<EdgeData>, count: Out<usize>) { edges(graph, from, to, Some(data), count) }
    fn cuGraphNodeGetDependencies(node: u64, to: Out<u64>, count: Out<usize>) { neighbours(node, to, None, count, true) }
    fn cuGraphNodeGetDependencies_v2(node: u64, to: Out<u64>, data: Out<EdgeData>, count: Out<usize>) { neighbours(node, to, Some(data), count, true) }
    fn cuGraphNodeGetDependentNodes(node: u64, to: Out<u64>, count: Out<usize>) { neighbours(node, to, None, count, false) }
    fn cuGraphNodeGetDependentNodes_v2(node: u64, to: Out<u64>, data: Out<EdgeData>, count: Out<usize>) { neighbours(node, to, Some(data), count, false) }

    fn cuGraphNodeGetType(node: u64, kind: Out<u32>) {
        let process = process()?;
        kind.put(with_node(&mut process.state(), node, |node| Ok(node.body.kind()))?)
    }

    fn cuGraphNodeFindInClone(found: Out<u64>, original: u64, clone: u64) {
        ask(clone, |graph| {
            let node = graph.nodes.iter().find(|node| node.original == Some(original));
            found.put(node.ok_or(Code::INVALID_VALUE)?.handle)
        })
    }

    fn cuGraphNodeGetContainingGraph(node: u64, graph: Out<u64>) {
        let process = process()?;
        let state = process.state();
        graph.put(*state.node_graphs.get(&node).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuGraphNodeGetLocalId(node: u64, id: Out<u32>) {
        let process = process()?;
        let state = process.state();
        let place = graph_of(&state, node)?.nodes.iter().position(|other| other.handle == node);
        id.put(u32::try_from(place.ok_or(Code::INVALID_VALUE)?).unwrap_or(0))
    }

    fn cuGraphNodeGetToolsId(node: u64, id: Out<u64>) {
        let process = process()?;
        graph_of(&process.state(), node)?;
        id.put(node >> 4)
    }

    fn cuGraphGetId(graph: u64, id: Out<u32>) {
        ask(graph, |_| Ok(()))?;
        id.put(u32::try_from(graph >> 4 & 0xff_ffff).unwrap_or(0))
    }

    fn cuGraphDebugDotPrint(graph: u64, path: Text, flags: u32) {
        let _ = flags;
        let path = path.get()?;
        let text = ask(graph, |graph| Ok(dot(graph)))?;
        std::fs::write(path, text).map_err(|_| Code::OPERATING_SYSTEM)
    }
}
