//! The annotations of nano-gpu and its descendants: one key a container, by its name, whose
//! value lists device-node numbers.

use model::{Claimed, DeviceRef, Role};

use crate::observing::{Seen, minors};
use crate::writing::{Writer, Writing};

/// One generation's spelling.
pub(crate) struct ByName {
    /// Annotation and label that say the pod was placed.
    pub(crate) assumed: &'static str,
    /// The key of a container, but for its name.
    pub(crate) container: &'static str,
    /// Earlier spellings: recognised, never written.
    pub(crate) once: &'static [(&'static str, &'static str)],
}

/// What the value says for a container without a card.
const NO_CARD: &str = "-1";

impl ByName {
    pub(crate) fn write(&self, writing: &Writing, out: &mut Writer) {
        out.annotate(self.assumed, "true");
        out.label(self.assumed, "true");
        for container in &writing.pod.containers {
            let cards = writing.minors(&container.name);
            let value = match (cards.is_empty(), container.role) {
                (false, _) => cards,
                (true, Role::App) => NO_CARD.to_owned(),
                // The originals ignored init containers, so nobody looks for a key of theirs.
                (true, Role::Init | Role::Sidecar) => continue,
            };
            out.annotate(&format!("{}{}", self.container, container.name), &value);
        }
    }

    pub(crate) fn recognise(&self, seen: &Seen) -> Option<Result<Vec<Claimed>, String>> {
        let spellings =
            std::iter::once((self.assumed, self.container)).chain(self.once.iter().copied());
        let annotations = &seen.pod.annotations;
        let (_, prefix) = spellings
            .into_iter()
            .find(|(assumed, _)| annotations.get(*assumed).is_some_and(|value| value == "true"))?;
        let claim = |container: &model::Container| {
            if !seen.asks(container) {
                return Ok(None);
            }
            let key = format!("{prefix}{}", container.name);
            match (annotations.get(&key), container.role) {
                (Some(value), _) if value == NO_CARD => Ok(None),
                (Some(value), _) => {
                    let cards = minors(&key, value)?.into_iter().map(DeviceRef::Minor);
                    Ok(Some(seen.claimed(container, cards)))
                }
                // The originals never gave an init container a card of its own.
                (None, Role::Init | Role::Sidecar) => Ok(None),
                (None, Role::App) => Err(format!("annotation {key} is missing")),
            }
        };
        Some(seen.pod.containers.iter().filter_map(|c| claim(c).transpose()).collect())
    }
}
