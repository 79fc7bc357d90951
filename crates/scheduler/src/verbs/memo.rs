//! What was found out before: a question that was asked already is asked again only of nodes that
//! have changed since. The answers are the same, as the tests hold it to.

use std::sync::{Arc, Mutex, PoisonError};

use model::{
    Affinity, Allowance, ContainerRequest, Host, Node, NodeName, Request, Selector, Snapshot,
};
use placement::{Ask, Board, NodeRefusal, Policy, fit};

/// How many questions are remembered.
const MOST: usize = 64;

/// What was found out before.
#[derive(Debug, Default)]
pub struct Memo {
    // An answer is taken out while it is brought up to date, so that others need not wait.
    answers: Mutex<Vec<Answers>>,
    board: Mutex<Option<Board>>,
}

#[derive(Debug)]
struct Answers {
    question: Question,
    /// By the node's place in the snapshot. The node tells whether the answer still holds.
    nodes: Vec<(Arc<Node>, Fits)>,
}

/// Nothing if it fits, else why not.
pub type Fits = Option<Arc<NodeRefusal>>;

/// What makes two pods ask the same of a node.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    containers: Vec<ContainerRequest>,
    one_card: bool,
    selector: Selector,
    affinity: Affinity,
    host: Host,
    tickets: Vec<(String, u64)>,
    allowance: Allowance,
    policy: Policy,
    /// Reasons name it where it has a quota.
    namespace: Option<String>,
}

impl Question {
    fn of(ask: &Ask) -> Self {
        let Request { containers, one_card, selector, affinity, host, tickets, .. } = ask.request;
        let limited = !ask.allowance.is_unlimited();
        Self {
            containers: containers.clone(),
            one_card: *one_card,
            selector: selector.clone(),
            affinity: *affinity,
            host: *host,
            tickets: tickets.clone(),
            allowance: ask.allowance.clone(),
            policy: ask.policy,
            namespace: limited.then(|| ask.request.pod.namespace.clone()),
        }
    }
}

impl Memo {
    /// For each node of `snapshot`, in its order, whether it fits.
    pub fn fits(&self, snapshot: &Snapshot, ask: &Ask) -> Vec<Fits> {
        let question = Question::of(ask);
        let known = {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            let place = answers.iter().position(|known| known.question == question);
            place.map(|place| answers.remove(place))
        };
        let mut answers = known.unwrap_or(Answers { question, nodes: Vec::new() });
        let mut before = std::mem::take(&mut answers.nodes).into_iter().peekable();
        let mut found = Vec::with_capacity(snapshot.nodes().len());
        for node in snapshot.nodes() {
            // Both are sorted by name.
            while before.next_if(|(old, _)| old.name < node.name).is_some() {}
            let same = before.next_if(|(old, _)| Arc::ptr_eq(old, node));
            let fits = same.map_or_else(|| fit(node, ask).err().map(Arc::new), |(_, fits)| fits);
            answers.nodes.push((node.clone(), fits.clone()));
            found.push(fits);
        }
        let mut all = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        all.truncate(MOST - 1);
        all.insert(0, answers);
        found
    }

    /// The nodes of `snapshot` that can take the pod, best first.
    pub fn order(&self, snapshot: &Snapshot, ask: &Ask) -> Vec<NodeName> {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        let board = board.get_or_insert_with(|| Board::new(snapshot));
        up_to_date(board, snapshot);
        let nodes = board.nodes();
        board.order(ask).into_iter().map(|place| nodes[place].name.clone()).collect()
    }
}

fn up_to_date(board: &mut Board, snapshot: &Snapshot) {
    let (new, old) = (snapshot.nodes(), board.nodes());
    if new.len() != old.len() || new.iter().zip(old).any(|(new, old)| new.name != old.name) {
        *board = Board::new(snapshot);
        return;
    }
    let changed = new.iter().zip(old).enumerate().filter(|(_, (new, old))| !Arc::ptr_eq(new, old));
    let changed: Vec<usize> = changed.map(|(place, _)| place).collect();
    for place in changed {
        board.replace(place, new[place].clone());
    }
    board.learn_if_new(snapshot.statistics());
}
