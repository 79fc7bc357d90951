//! What was found out before: a question that was asked already is asked again only of nodes that
//! have changed since. The answers are the same, as the tests hold it to.

use std::sync::{Arc, Mutex, PoisonError};

use model::{Affinity, Allowance, ContainerRequest, Host, Node, Request, Selector, Snapshot};
use placement::{Alike, Ask, Best, Board, NodeRefusal, Policy, Refusal, fit};

use super::places::Places;
use super::slack::Largest;
use super::wire::sentence;

/// How many questions are remembered.
const MOST: usize = 64;

/// What was found out before.
#[derive(Debug, Default)]
pub struct Memo {
    // An answer is taken out while it is brought up to date, so that others need not wait.
    answers: Mutex<Vec<Answers>>,
    board: Mutex<Option<Board>>,
    places: Mutex<Placed>,
}

/// Where nodes stand, and what their cards are at most.
#[derive(Debug, Default)]
struct Placed {
    nodes: Vec<Arc<Node>>,
    places: Arc<Places>,
    largest: Largest,
}

#[derive(Debug)]
struct Answers {
    question: Question,
    /// The nodes that were asked; nothing where none was yet. They tell whether an answer still holds.
    nodes: Vec<Option<Arc<Node>>>,
    found: Arc<Found>,
}

/// What nodes answered to one question.
#[derive(Debug, Default, Clone)]
pub struct Found {
    /// For each node the place of its reason; [`FITS`] if it has none. Apart from the rest, because
    /// thousands are looked through at a time, and most fit.
    answers: Vec<u32>,
    nodes: Vec<Known>,
    /// Thousands of nodes have few reasons: each is put into words once.
    reasons: Vec<Worded>,
}

/// What else is known of a node.
#[derive(Debug, Clone, Copy)]
struct Known {
    best: Best,
    /// The lowest priority of a pod on it.
    lowest: i32,
}

const FITS: u32 = u32::MAX;

/// A reason and its words.
#[derive(Debug, Clone)]
struct Worded {
    reason: Refusal,
    words: String,
}

impl Found {
    /// Why the node at `place` does not fit; nothing if it does.
    pub fn refusal(&self, place: usize) -> Option<NodeRefusal> {
        let reason = self.worded(place)?.reason.clone();
        Some(NodeRefusal { reason, best: self.nodes[place].best })
    }

    /// Whether the node at `place` fits.
    pub fn fits(&self, place: usize) -> bool {
        self.answers[place] == FITS
    }

    /// Whether the node at `place` never will do.
    pub fn never(&self, place: usize) -> bool {
        self.worded(place).is_some_and(|worded| worded.reason.is_permanent())
    }

    /// Why the node at `place` does not fit, as kube-scheduler can pass it on.
    pub fn words(&self, place: usize) -> &str {
        self.worded(place).map_or("", |worded| &worded.words)
    }

    /// Whether a pod of lower priority than `priority` is on the node at `place`.
    pub fn has_below(&self, place: usize, priority: i32) -> bool {
        self.nodes[place].lowest < priority
    }

    /// Those at `places` that do not fit, by reason.
    pub fn alike(&self, places: impl Iterator<Item = usize>) -> Vec<Alike<'_>> {
        let mut groups: Vec<Option<Alike>> = vec![None; self.reasons.len()];
        for place in places {
            let (answer, best) = (self.answers[place] as usize, self.nodes[place].best);
            let Some(group) = groups.get_mut(answer) else { continue };
            if let Some(group) = group {
                group.add(&best);
            } else {
                let reason = &self.reasons[answer].reason;
                *group = Some(Alike { reason, count: 1, best });
            }
        }
        groups.into_iter().flatten().collect()
    }

    /// So many nodes, none of them asked.
    fn of(count: usize) -> Self {
        let nothing = Known { best: Best::default(), lowest: i32::MAX };
        Self { answers: vec![FITS; count], nodes: vec![nothing; count], reasons: Vec::new() }
    }

    fn ask(&mut self, place: usize, node: &Node, ask: &Ask) {
        let (answer, best) = match fit(node, ask) {
            Ok(()) => (FITS, Best::default()),
            Err(NodeRefusal { reason, best }) => (self.number(reason), best),
        };
        let lowest = node.holders.iter().map(|holder| holder.priority).min().unwrap_or(i32::MAX);
        self.answers[place] = answer;
        self.nodes[place] = Known { best, lowest };
    }

    fn worded(&self, place: usize) -> Option<&Worded> {
        self.reasons.get(self.answers[place] as usize)
    }

    fn number(&mut self, reason: Refusal) -> u32 {
        let known = self.reasons.iter().position(|known| known.reason == reason);
        let place = known.unwrap_or_else(|| {
            let words = sentence(&reason.to_string());
            self.reasons.push(Worded { reason, words });
            self.reasons.len() - 1
        });
        u32::try_from(place).unwrap_or(0)
    }
}

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
    /// Where the nodes of `snapshot` stand in it.
    pub fn places(&self, snapshot: &Snapshot) -> Arc<Places> {
        self.placed(snapshot).0
    }

    /// What the cards of `snapshot` have at most.
    pub fn largest(&self, snapshot: &Snapshot) -> Largest {
        self.placed(snapshot).1
    }

    fn placed(&self, snapshot: &Snapshot) -> (Arc<Places>, Largest) {
        let mut placed = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let Placed { nodes, places, largest } = &mut *placed;
        if replace_changed(nodes, snapshot.nodes(), |_, node| largest.see(node)).is_none() {
            *nodes = snapshot.nodes().to_vec();
            *places = Arc::new(Places::of(nodes));
            for node in nodes.iter() {
                largest.see(node);
            }
        }
        (places.clone(), *largest)
    }

    /// What the nodes at `places` of `snapshot` answer. Nothing is known of others.
    pub fn ask(
        &self,
        snapshot: &Snapshot,
        ask: &Ask,
        places: impl IntoIterator<Item = usize>,
    ) -> Arc<Found> {
        let question = Question::of(ask);
        let known = {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            let place = answers.iter().position(|known| known.question == question);
            place.map(|place| answers.remove(place))
        };
        let mut answers =
            known.unwrap_or_else(|| Answers { question, nodes: Vec::new(), found: Arc::default() });
        answers.bring_up_to_date(snapshot.nodes(), ask, places);
        let found = answers.found.clone();
        let mut all = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        all.truncate(MOST - 1);
        all.insert(0, answers);
        found
    }

    /// The places in `snapshot` of the nodes that can take the pod, best first.
    pub fn order(&self, snapshot: &Snapshot, ask: &Ask) -> Vec<u32> {
        let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        let board = board.get_or_insert_with(|| Board::new(snapshot));
        up_to_date(board, snapshot);
        board.order(ask)
    }
}

impl Answers {
    fn bring_up_to_date(
        &mut self,
        nodes: &[Arc<Node>],
        ask: &Ask,
        places: impl IntoIterator<Item = usize>,
    ) {
        if self.nodes.len() != nodes.len() {
            self.realign(nodes);
        }
        for place in places {
            let (node, known) = (&nodes[place], &mut self.nodes[place]);
            if !known.as_ref().is_some_and(|known| Arc::ptr_eq(known, node)) {
                Arc::make_mut(&mut self.found).ask(place, node, ask);
                *known = Some(node.clone());
            }
        }
    }

    /// Nodes came or went: puts answers where their nodes stand now. Both are sorted by name.
    fn realign(&mut self, nodes: &[Arc<Node>]) {
        let before = std::mem::take(Arc::make_mut(&mut self.found));
        let mut found = Found { reasons: before.reasons, ..Found::of(nodes.len()) };
        let old = std::mem::take(&mut self.nodes).into_iter();
        let old = old.zip(before.answers.into_iter().zip(before.nodes));
        let mut old = old.filter_map(|(node, known)| Some((node?, known))).peekable();
        for (place, node) in nodes.iter().enumerate() {
            while old.next_if(|(old, _)| old.name < node.name).is_some() {}
            let same = old.next_if(|(old, _)| Arc::ptr_eq(old, node));
            self.nodes.push(same.map(|(node, (answer, known))| {
                found.answers[place] = answer;
                found.nodes[place] = known;
                node
            }));
        }
        self.found = Arc::new(found);
    }
}

/// Puts those of `new` that changed in the place of the old ones, and tells of each. Nothing
/// if they are not the same nodes; then some may have been told of.
///
/// Pointers are compared first: to read the names of thousands of nodes costs more than all else.
fn replace_changed(
    old: &mut [Arc<Node>],
    new: &[Arc<Node>],
    mut changed: impl FnMut(usize, &Arc<Node>),
) -> Option<()> {
    if old.len() != new.len() {
        return None;
    }
    for (place, (old, new)) in old.iter_mut().zip(new).enumerate() {
        if Arc::ptr_eq(old, new) {
            continue;
        }
        if old.name != new.name {
            return None;
        }
        *old = new.clone();
        changed(place, new);
    }
    Some(())
}

fn up_to_date(board: &mut Board, snapshot: &Snapshot) {
    let (new, old) = (snapshot.nodes(), board.nodes());
    if new.len() != old.len() {
        *board = Board::new(snapshot);
        return;
    }
    let changed = new.iter().zip(old).enumerate().filter(|(_, (new, old))| !Arc::ptr_eq(new, old));
    let changed: Vec<usize> = changed.map(|(place, _)| place).collect();
    if changed.iter().any(|&place| new[place].name != old[place].name) {
        *board = Board::new(snapshot);
        return;
    }
    for place in changed {
        board.replace(place, new[place].clone());
    }
    board.learn_if_new(snapshot.statistics());
}
