//! All nodes as readers see them, in a list that is handed out as it is.
//!
//! A picture is due at every change, and thousands of nodes stand in it. So there are two lists:
//! readers have one, and the one they had before, which hardly anybody reads any more, is brought up
//! to date and is the next. Only if somebody does still read that one it is made anew.

use std::mem::swap;
use std::sync::Arc;

use model::{Node, NodeName};

/// The nodes, by name.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// What is handed out.
    now: Arc<Vec<Arc<Node>>>,
    /// What was handed out before.
    before: Arc<Vec<Arc<Node>>>,
    /// The places at which the two differ; nothing if they have other nodes.
    differ: Option<Vec<usize>>,
}

impl Listing {
    /// All nodes.
    pub(crate) fn share(&self) -> Arc<Vec<Arc<Node>>> {
        self.now.clone()
    }

    /// Puts in a node, in the place of what it was.
    pub(crate) fn put(&mut self, node: Arc<Node>) {
        let found = self.find(&node.name);
        let list = self.open();
        match found {
            Ok(place) => {
                list[place] = node;
                self.differs_at(place);
            }
            Err(place) => {
                list.insert(place, node);
                self.differ = None;
            }
        }
    }

    /// Takes out the node of this name.
    pub(crate) fn remove(&mut self, name: &NodeName) {
        if let Ok(place) = self.find(name) {
            self.open().remove(place);
            self.differ = None;
        }
    }

    fn find(&self, name: &NodeName) -> Result<usize, usize> {
        self.now.binary_search_by(|node| node.name.cmp(name))
    }

    /// A list that nobody reads, with all that is in `now`.
    fn open(&mut self) -> &mut Vec<Arc<Node>> {
        if Arc::get_mut(&mut self.now).is_none() {
            match (self.differ.take(), Arc::get_mut(&mut self.before)) {
                (Some(differ), Some(list)) => {
                    for place in differ {
                        list[place] = self.now[place].clone();
                    }
                }
                _ => self.before = Arc::new(self.now.to_vec()),
            }
            swap(&mut self.now, &mut self.before);
            self.differ = Some(Vec::new());
        }
        // Never a copy: it is ours alone.
        Arc::make_mut(&mut self.now)
    }

    fn differs_at(&mut self, place: usize) {
        let many = self.now.len();
        // To copy that many one by one, some of them twice, would be no better than all of them.
        self.differ = self.differ.take().filter(|differ| differ.len() < many);
        if let Some(differ) = &mut self.differ {
            differ.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::{Agent, Host};

    use super::*;

    fn node(name: &str, shunned: bool) -> Arc<Node> {
        Arc::new(Node {
            name: NodeName::parse(name).unwrap(),
            allocatable: Host::default(),
            free: Host::default(),
            pool: None,
            shunned,
            agent: Agent::Fresh,
            problem: None,
            devices: Vec::new(),
            topology: Arc::default(),
            tickets: BTreeMap::new(),
            holders: Vec::new(),
            missing: Vec::new(),
        })
    }

    /// A list that is kept meanwhile, one that is given back, and none at all: what is handed out is
    /// right each time, and what was handed out does not change.
    #[test]
    fn what_is_handed_out_is_up_to_date_and_stays_as_it_was() {
        let mut numbers = (1_u32..).map(|n| n.wrapping_mul(2_654_435_761) >> 8);
        let mut number = |below: u32| numbers.next().unwrap() % below;
        let (mut listing, mut expected) = (Listing::default(), BTreeMap::new());
        let mut kept: Vec<(Arc<Vec<_>>, Vec<_>)> = Vec::new();
        for _ in 0..5_000 {
            let name = format!("n-{}", number(12));
            if number(8) == 0 {
                listing.remove(&NodeName::parse(&name).unwrap());
                expected.remove(&name);
            } else {
                let node = node(&name, number(2) == 0);
                listing.put(node.clone());
                expected.insert(name, node);
            }
            let all: Vec<_> = expected.values().cloned().collect();
            let mut sorted = all.clone();
            sorted.sort_by(|a, b| a.name.cmp(&b.name));
            match number(3) {
                0 => assert_eq!(*listing.share(), sorted),
                1 => kept.push((listing.share(), sorted)),
                _ => {}
            }
            if number(4) == 0 {
                kept.clear();
            }
            assert!(kept.iter().all(|(list, then)| **list == *then));
        }
    }

    #[test]
    fn one_change_copies_one_place() {
        let mut listing = Listing::default();
        (0..100).for_each(|n| listing.put(node(&format!("n-{n}"), false)));
        let mut lists = Vec::new();
        for n in 0..10 {
            listing.put(node(&format!("n-{n}"), true));
            // Readers go on to the newest.
            lists.push(Arc::as_ptr(&listing.share()));
        }
        lists.sort_unstable();
        lists.dedup();
        assert!(lists.len() <= 2, "two lists take turns");
    }
}
