//! Which nodes can take the pod, and why not the others.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use model::{NodeName, Snapshot};
use placement::{Alike, Ask, in_one_line};

use super::memo::{Found, Memo};
use super::places::Places;

/// What a node that we do not know is refused with. It may be too new for our watch.
const UNKNOWN: &str = "the node is not known to nanogpu yet";

/// The nodes asked about, sorted out, in the order in which they were asked.
#[derive(Debug, Default)]
pub struct Filtered {
    /// Nodes that can take the pod.
    pub fits: Vec<At>,
    /// Nodes that cannot.
    pub refused: Vec<Refused>,
    /// Places, in the list that was asked, of names that no node we know has.
    pub strangers: Vec<usize>,
    /// Places in the snapshot of all that fit, best first, if that was found out.
    pub order: Option<Vec<u32>>,
    found: Arc<Found>,
    places: Arc<Places>,
}

/// Where a node stands that can take the pod. Small, because there are thousands.
#[derive(Debug, Clone, Copy)]
pub struct At {
    place: u32,
    node: u32,
}

impl At {
    /// The node at `node` of the snapshot, which was asked about at `place`. Bodies are limited, so
    /// there are never so many that the numbers do not suffice.
    pub fn new(place: usize, node: usize) -> Self {
        let short = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self { place: short(place), node: short(node) }
    }

    /// Its place in the list that was asked.
    pub fn place(self) -> usize {
        self.place as usize
    }

    /// Its place in the snapshot.
    pub fn node(self) -> usize {
        self.node as usize
    }
}

/// A node that cannot take the pod.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    /// Where it stands.
    at: At,
    /// Whether kube-scheduler has no business evicting pods there.
    ///
    /// A node that never will do is one. So is a node that kube-scheduler's own sums say has room,
    /// as they do of every node it asks about: it would look for victims of lower priority, find
    /// that it needs none, and say so in words that change from time to time, which makes it try
    /// the pod again for ever. Who has to leave there is the leader's business (`preempting`).
    pub hands_off: bool,
}

/// Sorts `names` out. A name that stands there twice is answered once.
pub fn filter<S: AsRef<str>>(snapshot: &Snapshot, ask: &Ask, names: &[S], memo: &Memo) -> Filtered {
    let nodes = snapshot.nodes();
    let places = memo.places(snapshot);
    let (mut strangers, mut strange) = (Vec::new(), HashSet::new());
    let mut asked = Vec::with_capacity(names.len());
    let mut answered = vec![false; nodes.len()];
    for (place, name) in names.iter().enumerate() {
        let Some(node) = places.find(name.as_ref()) else {
            if strange.insert(name.as_ref()) {
                strangers.push(place);
            }
            continue;
        };
        if !std::mem::replace(&mut answered[node], true) {
            asked.push(At::new(place, node));
        }
    }
    // Who can be ranked fits, but for a quota: then the others alone are asked why not. For a few names
    // of many it is not worth ranking all.
    let ranked = ask.allowance.is_unlimited() && names.len() * 4 >= nodes.len();
    let order = ranked.then(|| memo.order(snapshot, ask));
    let mut ranks = vec![false; nodes.len()];
    for &node in order.iter().flatten() {
        ranks[node as usize] = true;
    }
    let unsure = asked.iter().map(|asked| asked.node()).filter(|&node| !ranks[node]);
    let found = memo.ask(snapshot, ask, unsure);
    let (fits, others): (Vec<At>, Vec<At>) =
        asked.into_iter().partition(|asked| ranks[asked.node()] || found.fits(asked.node()));
    let refused = others.into_iter().map(|other| {
        let below = found.has_below(other.node(), ask.request.priority);
        let hands_off = below || found.never(other.node());
        Refused { at: other, hands_off }
    });
    Filtered { fits, refused: refused.collect(), strangers, order, found, places }
}

/// Names of nodes, each with a sentence.
pub type Reasons<'a> = Vec<(&'a str, Cow<'a, str>)>;

impl Filtered {
    /// Nodes where kube-scheduler may evict, and nodes where it may not, each with its sentence.
    pub fn reasons<'a, S: AsRef<str>>(&'a self, names: &'a [S]) -> (Reasons<'a>, Reasons<'a>) {
        let (mut later, mut never) = (Vec::new(), Vec::new());
        for Refused { at, hands_off } in &self.refused {
            let list = if *hands_off { &mut never } else { &mut later };
            list.push((names[at.place()].as_ref(), Cow::Borrowed(self.found.words(at.node()))));
        }
        later.extend(self.strangers.iter().map(|&i| (names[i].as_ref(), Cow::Borrowed(UNKNOWN))));
        (later, never)
    }

    /// How many nodes were refused, by the code of the reason.
    pub fn codes(&self) -> BTreeMap<&'static str, usize> {
        let mut codes = BTreeMap::new();
        for group in self.alike() {
            *codes.entry(group.reason.code()).or_default() += group.count;
        }
        codes
    }

    /// The name of a node that can take the pod.
    pub fn name(&self, fits: At) -> &NodeName {
        &self.places.names()[fits.node()]
    }

    /// The nodes that refused, and those nobody knows, by name.
    pub fn refused_names<S: AsRef<str>>(&self, asked: &[S]) -> Arc<[NodeName]> {
        let all = self.places.names();
        if self.strangers.is_empty() && self.refused.len() == all.len() {
            return all.clone();
        }
        let known = self.refused.iter().map(|refused| all[refused.at.node()].clone());
        let strangers = self.strangers.iter().map(|&place| asked[place].as_ref());
        let strangers = strangers.filter_map(|name| NodeName::parse(name).ok());
        let mut names: Vec<NodeName> = known.chain(strangers).collect();
        names.sort_unstable();
        names.into()
    }

    /// All nodes that were asked about, by name.
    pub fn asked_names<S: AsRef<str>>(&self, asked: &[S]) -> Arc<[NodeName]> {
        let all = self.places.names();
        let fits = self.fits.iter().map(|fits| all[fits.node()].clone());
        let mut names: Vec<NodeName> =
            self.refused_names(asked).iter().cloned().chain(fits).collect();
        names.sort_unstable();
        names.into()
    }

    /// Why no node will do, in one line, for people.
    pub fn summary(&self) -> String {
        in_one_line(self.fits.len() + self.refused.len(), self.alike())
    }

    fn alike(&self) -> Vec<Alike<'_>> {
        self.found.alike(self.refused.iter().map(|refused| refused.at.node()))
    }
}
