//! Which nodes can take the pod, and why not the others.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use model::{Node, NodeName, Snapshot};
use placement::{Ask, Explanation, NodeRefusal, fit};

/// What a node that we do not know is refused with. It may be too new for our watch.
const UNKNOWN: &str = "the node is not known to nanogpu yet";

/// The nodes asked about, sorted out. Places are places in the list that was asked.
#[derive(Debug, Default)]
pub struct Filtered {
    /// Nodes that can take the pod.
    pub fits: Vec<(usize, Arc<Node>)>,
    /// Nodes that cannot, and why.
    pub refused: Vec<(usize, NodeName, NodeRefusal)>,
    /// Names that no node we know has.
    pub strangers: Vec<usize>,
}

/// Sorts `names` out. A name that stands there twice is answered once.
pub fn filter<S: AsRef<str>>(snapshot: &Snapshot, ask: &Ask, names: &[S]) -> Filtered {
    let mut wanted: HashMap<&str, usize> = HashMap::with_capacity(names.len());
    for (place, name) in names.iter().enumerate() {
        wanted.entry(name.as_ref()).or_insert(place);
    }
    let mut filtered = Filtered::default();
    for node in snapshot.nodes() {
        let Some(place) = wanted.remove(node.name.as_str()) else { continue };
        match fit(node, ask) {
            Ok(()) => filtered.fits.push((place, node.clone())),
            Err(refusal) => filtered.refused.push((place, node.name.clone(), refusal)),
        }
    }
    filtered.strangers = wanted.into_values().collect();
    filtered.fits.sort_unstable_by_key(|(place, _)| *place);
    filtered.refused.sort_unstable_by_key(|(place, _, _)| *place);
    filtered.strangers.sort_unstable();
    filtered
}

impl Filtered {
    /// Nodes that could fit later, and nodes that never will, each with its sentence.
    #[expect(clippy::type_complexity, reason = "two lists of the same kind")]
    pub fn reasons<'a, S: AsRef<str>>(
        &self,
        names: &'a [S],
    ) -> (Vec<(&'a str, Cow<'a, str>)>, Vec<(&'a str, Cow<'a, str>)>) {
        let (mut later, mut never) = (Vec::new(), Vec::new());
        // Thousands of nodes, few sentences: each is made once.
        let mut sentences: HashMap<&placement::Refusal, String> = HashMap::new();
        for (place, _, refusal) in &self.refused {
            let sentence =
                sentences.entry(&refusal.reason).or_insert_with(|| refusal.reason.to_string());
            let list = if refusal.reason.is_permanent() { &mut never } else { &mut later };
            list.push((names[*place].as_ref(), Cow::Owned(sentence.clone())));
        }
        later.extend(self.strangers.iter().map(|&i| (names[i].as_ref(), Cow::Borrowed(UNKNOWN))));
        (later, never)
    }

    /// All of it in one line, for people.
    pub fn explanation(self) -> Explanation {
        let nodes = self.fits.len() + self.refused.len();
        let refused = self.refused.into_iter().map(|(_, node, refusal)| (node, refusal));
        Explanation { nodes, refused: refused.collect() }
    }
}
