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
    pub fits: Vec<Fits>,
    /// Nodes that cannot.
    pub refused: Vec<Refused>,
    /// Places, in the list that was asked, of names that no node we know has.
    pub strangers: Vec<usize>,
    found: Arc<Found>,
    places: Arc<Places>,
}

/// A node that can take the pod.
#[derive(Debug, Clone, Copy)]
pub struct Fits {
    /// Its place in the list that was asked.
    pub place: usize,
    /// Its place in the snapshot.
    pub node: usize,
}

/// A node that cannot take the pod.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    /// Its place in the list that was asked.
    pub place: usize,
    /// Its place in the snapshot.
    node: usize,
    /// Its place in what was found.
    found: usize,
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
    // For a few names of many it is not worth bringing all answers up to date.
    let all = (names.len() * 4 >= nodes.len()).then(|| memo.fits(snapshot, ask));
    let mut few = Found::default();
    let mut fits = Vec::with_capacity(names.len());
    let (mut refused, mut strangers, mut strange) = (Vec::new(), Vec::new(), HashSet::new());
    let mut answered = vec![false; nodes.len()];
    for (place, name) in names.iter().enumerate() {
        let Some(node) = places.find(name.as_ref()) else {
            if strange.insert(name.as_ref()) {
                strangers.push(place);
            }
            continue;
        };
        if std::mem::replace(&mut answered[node], true) {
            continue;
        }
        let at = if all.is_some() { node } else { few.ask(&nodes[node], ask) };
        let found = all.as_deref().unwrap_or(&few);
        if found.fits(at) {
            fits.push(Fits { place, node });
        } else {
            let below = found.has_below(at, ask.request.priority);
            let hands_off = below || found.never(at);
            refused.push(Refused { place, node, found: at, hands_off });
        }
    }
    Filtered { fits, refused, strangers, found: all.unwrap_or_else(|| Arc::new(few)), places }
}

/// Names of nodes, each with a sentence.
pub type Reasons<'a> = Vec<(&'a str, Cow<'a, str>)>;

impl Filtered {
    /// Nodes where kube-scheduler may evict, and nodes where it may not, each with its sentence.
    pub fn reasons<'a, S: AsRef<str>>(&'a self, names: &'a [S]) -> (Reasons<'a>, Reasons<'a>) {
        let (mut later, mut never) = (Vec::new(), Vec::new());
        for Refused { place, found, hands_off, .. } in &self.refused {
            let list = if *hands_off { &mut never } else { &mut later };
            list.push((names[*place].as_ref(), Cow::Borrowed(self.found.words(*found))));
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
    pub fn name(&self, fits: Fits) -> &NodeName {
        &self.places.names()[fits.node]
    }

    /// The nodes that refused, and those nobody knows, by name.
    pub fn refused_names<S: AsRef<str>>(&self, asked: &[S]) -> Arc<[NodeName]> {
        let all = self.places.names();
        if self.strangers.is_empty() && self.refused.len() == all.len() {
            return all.clone();
        }
        let known = self.refused.iter().map(|refused| all[refused.node].clone());
        let strangers = self.strangers.iter().map(|&place| asked[place].as_ref());
        let strangers = strangers.filter_map(|name| NodeName::parse(name).ok());
        let mut names: Vec<NodeName> = known.chain(strangers).collect();
        names.sort_unstable();
        names.into()
    }

    /// All nodes that were asked about, by name.
    pub fn asked_names<S: AsRef<str>>(&self, asked: &[S]) -> Arc<[NodeName]> {
        let all = self.places.names();
        let fits = self.fits.iter().map(|fits| all[fits.node].clone());
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
        self.found.alike(self.refused.iter().map(|refused| refused.found))
    }
}
