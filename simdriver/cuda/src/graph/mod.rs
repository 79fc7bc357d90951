//! Graphs: work that is described once and launched many times.

pub(crate) mod build;
pub(crate) mod exec;
pub(crate) mod exec_calls;
pub(crate) mod memory;
pub(crate) mod params;
pub(crate) mod query;
pub(crate) mod shapes;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::abi::{Answer, Code};
use crate::copy::plan::{Fill, Plan};
use crate::event::Event;
use crate::launch::Launch;
use crate::process::{Kind, State};
use crate::stream::order::{HostCall, WordOrder};
pub(crate) use exec::Exec;

/// What a node does.
#[derive(Clone)]
pub(crate) enum Body {
    Kernel(Launch),
    Copy(Plan, u64),
    Fill(Fill, u64),
    Host(HostCall),
    Child(u64),
    Empty,
    Wait(Arc<Event>),
    Record(Arc<Event>),
    Alloc { card: usize, address: u64, size: u64 },
    Free(u64),
    Words(Vec<WordOrder>),
}

impl Body {
    /// As the API numbers the types.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Kernel(_) => 0,
            Self::Copy(..) => 1,
            Self::Fill(..) => 2,
            Self::Host(_) => 3,
            Self::Child(_) => 4,
            Self::Empty => 5,
            Self::Wait(_) => 6,
            Self::Record(_) => 7,
            Self::Alloc { .. } => 10,
            Self::Free(_) => 11,
            Self::Words(_) => 12,
        }
    }
}

/// A node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) body: Body,
    /// The node it is a copy of.
    pub(crate) original: Option<u64>,
}

/// A graph.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) edges: Vec<(u64, u64)>,
    /// It is the graph of a child node, and goes with it.
    pub(crate) child: bool,
    /// References to objects of the caller's.
    pub(crate) objects: HashMap<u64, u32>,
}

impl Graph {
    pub(crate) fn node(&self, handle: u64) -> Option<&Node> {
        self.nodes.iter().find(|node| node.handle == handle)
    }

    pub(crate) fn before(&self, node: u64) -> impl Iterator<Item = u64> {
        self.edges.iter().filter(move |(_, to)| *to == node).map(|(from, _)| *from)
    }

    pub(crate) fn after(&self, node: u64) -> impl Iterator<Item = u64> {
        self.edges.iter().filter(move |(from, _)| *from == node).map(|(_, to)| *to)
    }

    /// Everything that comes before some nodes, and they themselves.
    pub(crate) fn ancestors(&self, nodes: &[u64]) -> HashSet<u64> {
        let mut seen: HashSet<u64> = nodes.iter().copied().collect();
        let mut open: Vec<u64> = nodes.to_vec();
        while let Some(node) = open.pop() {
            open.extend(self.before(node).filter(|before| seen.insert(*before)));
        }
        seen
    }

    /// The nodes so that each comes after those before it; `None` if they go round.
    pub(crate) fn in_order(&self) -> Option<Vec<&Node>> {
        let mut missing: HashMap<u64, usize> =
            self.nodes.iter().map(|node| (node.handle, self.before(node.handle).count())).collect();
        let mut order = Vec::new();
        while order.len() < self.nodes.len() {
            let ready = |node: &&Node| missing.get(&node.handle) == Some(&0);
            let node = self.nodes.iter().find(ready)?;
            missing.remove(&node.handle);
            for after in self.after(node.handle) {
                if let Some(count) = missing.get_mut(&after) {
                    *count = count.saturating_sub(1);
                }
            }
            order.push(node);
        }
        Some(order)
    }
}

/// Adds a node behind others.
pub(crate) fn add(state: &mut State, graph: u64, before: &[u64], body: Body) -> Answer<u64> {
    let found = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?;
    let mut seen = HashSet::new();
    if before.iter().any(|node| found.node(*node).is_none() || !seen.insert(*node)) {
        return Err(Code::INVALID_VALUE);
    }
    let handle = state.handle(Kind::Node);
    if let Some(graph) = state.graphs.get_mut(&graph) {
        graph.nodes.push(Node { handle, body, original: None });
        graph.edges.extend(before.iter().map(|node| (*node, handle)));
    }
    state.node_graphs.insert(handle, graph);
    Ok(handle)
}

/// Copies a graph, its child graphs too; each new node remembers its original.
pub(crate) fn copy(state: &mut State, graph: u64, child: bool) -> Answer<u64> {
    let from = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.clone();
    let handle = state.handle(Kind::Graph);
    let mut names = HashMap::new();
    let mut nodes = Vec::new();
    for node in &from.nodes {
        let body = match &node.body {
            Body::Child(inner) => Body::Child(copy(state, *inner, true)?),
            other => other.clone(),
        };
        let new = state.handle(Kind::Node);
        names.insert(node.handle, new);
        state.node_graphs.insert(new, handle);
        nodes.push(Node { handle: new, body, original: Some(node.handle) });
    }
    let edge = |(from, to): &(u64, u64)| Some((*names.get(from)?, *names.get(to)?));
    let edges = from.edges.iter().filter_map(edge).collect();
    state.graphs.insert(handle, Graph { nodes, edges, child, objects: HashMap::new() });
    Ok(handle)
}

/// Takes a graph out, its child graphs too.
pub(crate) fn remove(state: &mut State, graph: u64) -> Answer<Graph> {
    let removed = state.graphs.remove(&graph).ok_or(Code::INVALID_VALUE)?;
    for node in &removed.nodes {
        state.node_graphs.remove(&node.handle);
        if let Body::Child(inner) = node.body {
            // A child that is gone already is as good.
            let _ = remove(state, inner);
        }
    }
    Ok(removed)
}

/// Works on a node.
pub(crate) fn with_node<T>(
    state: &mut State,
    handle: u64,
    work: impl FnOnce(&mut Node) -> Answer<T>,
) -> Answer<T> {
    let graph = state.node_graphs.get(&handle).ok_or(Code::INVALID_VALUE)?;
    let graph = state.graphs.get_mut(graph).ok_or(Code::INVALID_VALUE)?;
    let node = graph.nodes.iter_mut().find(|node| node.handle == handle);
    work(node.ok_or(Code::INVALID_VALUE)?)
}

/// The graph a node is in.
pub(crate) fn graph_of(state: &State, node: u64) -> Answer<&Graph> {
    let graph = state.node_graphs.get(&node).ok_or(Code::INVALID_VALUE)?;
    state.graphs.get(graph).ok_or(Code::INVALID_VALUE)
}
