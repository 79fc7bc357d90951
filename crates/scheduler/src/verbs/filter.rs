//! Which nodes can take the pod, and why not the others.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use model::{Holder, Node, NodeName, Snapshot};
use placement::{Ask, Explanation, NodeRefusal, fit};

use super::memo::Memo;
use super::wire::sentence;

/// What a node that we do not know is refused with. It may be too new for our watch.
const UNKNOWN: &str = "the node is not known to nanogpu yet";

/// The nodes asked about, sorted out. Places are places in the list that was asked.
#[derive(Debug, Default)]
pub struct Filtered {
    /// Nodes that can take the pod.
    pub fits: Vec<(usize, Arc<Node>)>,
    /// Nodes that cannot, and why.
    pub refused: Vec<Refused>,
    /// Names that no node we know has.
    pub strangers: Vec<usize>,
}

/// A node that cannot take the pod.
#[derive(Debug)]
pub struct Refused {
    /// Its place in the list that was asked.
    pub place: usize,
    /// Which node.
    pub node: NodeName,
    /// Why.
    pub refusal: Arc<NodeRefusal>,
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
    let mut wanted: HashMap<&str, usize> = HashMap::with_capacity(names.len());
    for (place, name) in names.iter().enumerate() {
        wanted.entry(name.as_ref()).or_insert(place);
    }
    // For a few names of many it is not worth bringing all answers up to date.
    let known = (names.len() * 4 >= snapshot.nodes().len()).then(|| memo.fits(snapshot, ask));
    let mut filtered = Filtered::default();
    for (i, node) in snapshot.nodes().iter().enumerate() {
        let Some(place) = wanted.remove(node.name.as_str()) else { continue };
        let refusal = match &known {
            Some(known) => known[i].clone(),
            None => fit(node, ask).err().map(Arc::new),
        };
        match refusal {
            None => filtered.fits.push((place, node.clone())),
            Some(refusal) => {
                let below = |holder: &Arc<Holder>| holder.priority < ask.request.priority;
                let hands_off = refusal.reason.is_permanent() || node.holders.iter().any(below);
                let node = node.name.clone();
                filtered.refused.push(Refused { place, node, refusal, hands_off });
            }
        }
    }
    filtered.strangers = wanted.into_values().collect();
    filtered.fits.sort_unstable_by_key(|(place, _)| *place);
    filtered.refused.sort_unstable_by_key(|refused| refused.place);
    filtered.strangers.sort_unstable();
    filtered
}

impl Filtered {
    /// Nodes where kube-scheduler may evict, and nodes where it may not, each with its sentence.
    #[expect(clippy::type_complexity, reason = "two lists of the same kind")]
    pub fn reasons<'a, S: AsRef<str>>(
        &self,
        names: &'a [S],
    ) -> (Vec<(&'a str, Cow<'a, str>)>, Vec<(&'a str, Cow<'a, str>)>) {
        let (mut later, mut never) = (Vec::new(), Vec::new());
        // Thousands of nodes, few sentences: each is made once.
        let mut sentences: HashMap<&placement::Refusal, String> = HashMap::new();
        for Refused { place, refusal, hands_off, .. } in &self.refused {
            let made = sentences.entry(&refusal.reason);
            let text = made.or_insert_with(|| sentence(&refusal.reason.to_string()));
            let list = if *hands_off { &mut never } else { &mut later };
            list.push((names[*place].as_ref(), Cow::Owned(text.clone())));
        }
        later.extend(self.strangers.iter().map(|&i| (names[i].as_ref(), Cow::Borrowed(UNKNOWN))));
        (later, never)
    }

    /// All of it in one line, for people.
    pub fn explanation(self) -> Explanation {
        let nodes = self.fits.len() + self.refused.len();
        let refused = self.refused.into_iter().map(|r| (r.node, NodeRefusal::clone(&r.refusal)));
        Explanation { nodes, refused: refused.collect() }
    }
}
