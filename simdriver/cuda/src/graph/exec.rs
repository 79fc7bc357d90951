//! Graphs made ready to launch, and their launch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use machine::{Ticket, Work};

use super::{Body, Graph, memory};
use crate::abi::{Answer, Code};
use crate::process::{Call, Kind, Process, State, lock};
use crate::stream::order::{Order, carry_out, step_in};
use crate::stream::{Point, Stream};

/// Frees what an earlier launch left allocated.
const AUTO_FREE: u64 = 1;
/// Branches of one graph that run side by side; more share these.
const BRANCHES: u64 = 8;

/// A graph ready to launch: its nodes in an order that works, child graphs among them.
pub(crate) struct Exec {
    pub(crate) steps: Vec<Step>,
    pub(crate) flags: u64,
    pub(crate) number: u32,
    /// The end of its last launch: it never runs beside itself.
    last: Option<Point>,
}

/// A node, and which of the steps before it must be done.
pub(crate) struct Step {
    pub(crate) node: u64,
    pub(crate) body: Body,
    pub(crate) before: Vec<usize>,
    pub(crate) enabled: bool,
}

/// Lays a graph out as steps; a child's nodes take its place.
fn lay_out(
    state: &State,
    graph: &Graph,
    before: &[usize],
    steps: &mut Vec<Step>,
) -> Answer<Vec<usize>> {
    let order = graph.in_order().ok_or(Code::INVALID_VALUE)?;
    // The steps at which each node is done.
    let mut ends: HashMap<u64, Vec<usize>> = HashMap::new();
    for node in order {
        let mut needs: Vec<usize> = graph
            .before(node.handle)
            .filter_map(|node| ends.get(&node))
            .flatten()
            .copied()
            .collect();
        if needs.is_empty() {
            needs = before.to_vec();
        }
        let done = match &node.body {
            Body::Child(inner) => {
                let inner = state.graphs.get(inner).ok_or(Code::INVALID_VALUE)?;
                let done = lay_out(state, inner, &needs, steps)?;
                if done.is_empty() { needs } else { done }
            }
            body => {
                let (node, body) = (node.handle, body.clone());
                steps.push(Step { node, body, before: needs, enabled: true });
                vec![steps.len() - 1]
            }
        };
        ends.insert(node.handle, done);
    }
    let last = graph.nodes.iter().filter(|node| graph.after(node.handle).next().is_none());
    Ok(last.filter_map(|node| ends.get(&node.handle)).flatten().copied().collect())
}

/// Makes a graph ready.
pub(crate) fn instantiate(process: &Process, graph: u64, flags: u64) -> Answer<u64> {
    let mut state = process.state();
    let mut steps = Vec::new();
    let found = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?;
    lay_out(&state, found, &[], &mut steps)?;
    let handle = state.handle(Kind::Exec);
    let number = u32::try_from(handle >> 4 & 0xff_ffff).unwrap_or(0);
    let exec = Exec { steps, flags, number, last: None };
    state.execs.insert(handle, Arc::new(Mutex::new(exec)));
    Ok(handle)
}

/// Why an update is not possible, as the API numbers it, and the node that shows it.
pub(crate) struct Mismatch(pub(crate) u32, pub(crate) u64);

const TOPOLOGY_CHANGED: u32 = 2;
const TYPE_CHANGED: u32 = 3;

/// Gives an exec the parameters of another graph of the same shape.
pub(crate) fn update(
    process: &Process,
    exec: &Mutex<Exec>,
    graph: u64,
) -> Answer<Result<(), Mismatch>> {
    let mut steps = Vec::new();
    {
        let state = process.state();
        lay_out(&state, state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?, &[], &mut steps)?;
    }
    let mut exec = lock(exec);
    if steps.len() != exec.steps.len() {
        return Ok(Err(Mismatch(TOPOLOGY_CHANGED, 0)));
    }
    for (old, new) in exec.steps.iter().zip(&steps) {
        if old.before != new.before {
            return Ok(Err(Mismatch(TOPOLOGY_CHANGED, new.node)));
        }
        if old.body.kind() != new.body.kind() {
            return Ok(Err(Mismatch(TYPE_CHANGED, new.node)));
        }
    }
    for (old, new) in exec.steps.iter_mut().zip(steps) {
        old.body = new.body;
    }
    Ok(Ok(()))
}

/// What a launch allocates, by card.
fn allocations(exec: &Exec) -> Vec<(usize, u64, u64)> {
    let alloc = |step: &Step| match step.body {
        Body::Alloc { card, address, size } => Some((card, address, size)),
        _ => None,
    };
    exec.steps.iter().filter_map(alloc).collect()
}

/// Has the card keep the memory that a launch will need.
pub(crate) fn upload(process: &Process, exec: &Mutex<Exec>) -> Answer {
    let wanted = {
        let exec = lock(exec);
        let state = process.state();
        let mut all = allocations(&exec);
        all.retain(|(_, address, _)| !memory::in_use(&state, *address));
        all
    };
    let mut cards: Vec<usize> = wanted.iter().map(|(card, ..)| *card).collect();
    cards.sort_unstable();
    cards.dedup();
    for card in cards {
        let sizes = wanted.iter().filter(|(other, ..)| *other == card).map(|(_, _, size)| *size);
        memory::admit(process, card, sizes)?;
    }
    Ok(())
}

/// Launches in a stream.
pub(crate) fn launch(call: &Call, exec: &Mutex<Exec>, stream: &Arc<Stream>) -> Answer {
    let process = call.process;
    {
        let exec = lock(exec);
        let left: Vec<(usize, u64)> = {
            let state = process.state();
            let all = allocations(&exec).into_iter();
            all.filter(|(_, address, _)| memory::in_use(&state, *address))
                .map(|(card, address, _)| (card, address))
                .collect()
        };
        if !left.is_empty() && exec.flags & AUTO_FREE == 0 {
            return Err(Code::INVALID_VALUE);
        }
        for (card, address) in left {
            memory::freed(process, card, address);
        }
    }
    upload(process, exec)?;
    step_in(call, stream)?;
    let mut exec = lock(exec);
    for step in &exec.steps {
        match &step.body {
            Body::Copy(plan, _) => plan.check(&process.state())?,
            Body::Fill(fill, _) => fill.checked(&process.state()).map(|_| ())?,
            _ => {}
        }
    }
    if let Some(last) = &exec.last {
        stream.wait_for(process, last)?;
    }
    run(process, &exec, stream)?;
    stream.wake_worker(process);
    exec.last = Some(stream.point());
    Ok(())
}

/// Submits all steps: each in the branch of one of those before it, waiting for the others.
fn run(process: &'static Process, exec: &Exec, stream: &Arc<Stream>) -> Answer {
    let start = stream.point().ticket();
    // The branch of each step, and the work that ends it.
    let mut done: Vec<(u64, Option<Ticket>)> = Vec::new();
    let mut last_in: HashMap<u64, usize> = HashMap::new();
    let mut branches = 0;
    for (index, step) in exec.steps.iter().enumerate() {
        let follows = step.before.iter().find(|before| {
            let branch = done[**before].0;
            last_in.get(&branch) == Some(*before)
        });
        let key = if let Some(before) = follows {
            done[*before].0
        } else {
            branches += 1;
            stream.key | ((branches - 1) % BRANCHES + 1)
        };
        let submit = |work| process.joined.submit(stream.place, key, work);
        if let (true, Some(start)) = (step.before.is_empty(), start) {
            submit(Work::Wait(start))?;
        }
        for before in step.before.iter().filter(|before| Some(*before) != follows) {
            if let Some(ticket) = done[*before].1 {
                submit(Work::Wait(ticket))?;
            }
        }
        let order = if step.enabled { order(&step.body, stream) } else { Order::Nothing };
        let ticket = match carry_out(process, stream, key, order)? {
            Some(ticket) => ticket,
            None => submit(Work::Marker { cell: None })?,
        };
        done.push((key, Some(ticket)));
        last_in.insert(key, index);
    }
    for index in last_in.values() {
        if let Some(ticket) = done[*index].1 {
            stream.submit(process, Work::Wait(ticket))?;
        }
    }
    Ok(())
}

fn order(body: &Body, stream: &Stream) -> Order {
    match body {
        Body::Kernel(launch) => Order::Kernel(*launch),
        Body::Copy(plan, _) => Order::Copy(plan.clone()),
        Body::Fill(fill, _) => Order::Fill(*fill),
        Body::Host(host) => Order::Host(*host),
        Body::Wait(event) => Order::Wait(Arc::clone(event)),
        Body::Record(event) => Order::Record(Arc::clone(event)),
        Body::Alloc { card, address, size } => {
            Order::GraphAlloc { card: *card, address: *address, size: *size }
        }
        Body::Free(address) => Order::GraphFree { card: stream.card, address: *address },
        Body::Words(words) => Order::Words(words.clone()),
        // Child graphs are laid out among the steps.
        Body::Child(_) | Body::Empty => Order::Nothing,
    }
}
