//! Events on pods, in plain words.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder as KubeRecorder, Reporter};
use model::PodId;

/// What is told of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Which pod.
    pub pod: PodId,
    /// One word: why this is told.
    pub reason: &'static str,
    /// The sentence.
    pub note: String,
    /// Whether somebody should do something.
    pub warning: bool,
}

/// Writes Events. What cannot be written is dropped: it is no reason to hold anything up.
#[derive(Clone)]
pub struct Recorder {
    recorder: KubeRecorder,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// The longest note the API takes.
const LONGEST: usize = 1024;

impl Recorder {
    /// Events in the name of `controller`, told by this `instance`.
    pub fn new(client: Client, controller: &str, instance: &str) -> Self {
        let reporter =
            Reporter { controller: controller.to_owned(), instance: Some(instance.to_owned()) };
        Self { recorder: KubeRecorder::new(client, reporter) }
    }

    /// Tells.
    pub async fn tell(&self, told: Told) {
        let Told { pod, reason, note, warning } = told;
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name),
            namespace: Some(pod.namespace),
            uid: Some(pod.uid.to_string()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(cut(note)),
            action: "Scheduling".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &regarding).await {
            tracing::debug!(%error, reason, "event dropped");
        }
    }
}

fn cut(mut note: String) -> String {
    if note.len() > LONGEST {
        let mut end = LONGEST - '…'.len_utf8();
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_cut_between_letters() {
        let note = cut("é".repeat(2000));
        assert!(note.len() <= LONGEST && note.ends_with('…'));
        assert_eq!(cut("short".to_owned()), "short");
    }
}
