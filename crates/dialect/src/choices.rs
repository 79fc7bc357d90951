//! The policies a pod chose for itself, among those the administrator allows.

use model::ids::Quoted;
use model::{Overrides, Pod, PolicyName, names};

use crate::refusal::Refusal;
use crate::settings::Settings;

/// Ours first: it outranks a foreign one on the same pod.
const NODE: [&str; 3] =
    [names::NODE_POLICY, "nvidia.com/node-scheduler-policy", "hami.io/node-scheduler-policy"];
const DEVICE: [&str; 3] =
    [names::DEVICE_POLICY, "nvidia.com/device-scheduler-policy", "hami.io/gpu-scheduler-policy"];
/// What HAMi's list may hold beside policies.
const HAMI_FILTERS: [&str; 3] = ["numa", "mutex", "topology-aware"];

/// Reads what `pod` chose.
pub(crate) fn overrides(
    pod: &Pod,
    settings: &Settings,
    notes: &mut Vec<String>,
) -> Result<Overrides, Refusal> {
    Ok(Overrides {
        node: choice(pod, NODE, settings, notes)?,
        device: choice(pod, DEVICE, settings, notes)?,
    })
}

fn choice(
    pod: &Pod,
    keys: [&str; 3],
    settings: &Settings,
    notes: &mut Vec<String>,
) -> Result<Option<PolicyName>, Refusal> {
    let written = keys.into_iter().find_map(|key| Some((key, pod.annotations.get(key)?)));
    let Some((key, text)) = written else { return Ok(None) };
    let mut chosen = None;
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if word.eq_ignore_ascii_case("none") {
            continue;
        }
        if HAMI_FILTERS.contains(&word) {
            notes.push(format!("annotation {key}: {word} is not supported and has no effect"));
            continue;
        }
        let policy = PolicyName::parse(word).filter(|policy| settings.policies.contains(policy));
        let Some(policy) = policy else { return Err(refused(key, text, settings)) };
        chosen = chosen.or(Some(policy));
    }
    Ok(chosen)
}

fn refused(key: &str, text: &str, settings: &Settings) -> Refusal {
    let allowed: Vec<&str> = settings.policies.iter().map(|policy| policy.as_str()).collect();
    let must = match allowed.as_slice() {
        [] => "left out: pods may not choose a policy in this cluster".to_owned(),
        _ => format!("one of {}", allowed.join(", ")),
    };
    Refusal::Annotation { key: key.to_owned(), value: Quoted::new(text), must }
}
