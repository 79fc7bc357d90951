//! What a pod chose for itself: policies, among those the administrator allows, and how near to
//! one another its cards must be.

use model::ids::Quoted;
use model::{Affinity, Near, Overrides, Pod, PolicyName, names};

use crate::refusal::Refusal;
use crate::settings::Settings;

/// Ours first: it outranks a foreign one on the same pod.
const NODE: [&str; 3] =
    [names::NODE_POLICY, "nvidia.com/node-scheduler-policy", "hami.io/node-scheduler-policy"];
const DEVICE: [&str; 3] =
    [names::DEVICE_POLICY, "nvidia.com/device-scheduler-policy", "hami.io/gpu-scheduler-policy"];
/// HAMi's list of policies for cards. It may hold wishes for nearness too.
const HAMI_DEVICE: &str = DEVICE[2];
const HAMI_MUTEX: &str = "mutex";
const NEARNESS: [&str; 2] = [names::TOPOLOGY, "nvidia.com/device-topology-mode"];
const HAMI_NUMA_BIND: &str = "nvidia.com/numa-bind";

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
        if word == HAMI_MUTEX {
            notes.push(format!("annotation {key}: {word} is not supported and has no effect"));
            continue;
        }
        if hami_wish(word).is_some() {
            continue;
        }
        let policy = PolicyName::parse(word).filter(|policy| settings.policies.contains(policy));
        let Some(policy) = policy else { return Err(refused(key, text, settings)) };
        chosen = chosen.or(Some(policy));
    }
    Ok(chosen)
}

/// How near to one another `pod` wants the cards of a container. What is required outranks what
/// is preferred; ours outranks a foreign wish.
pub(crate) fn affinity(pod: &Pod) -> Result<Affinity, Refusal> {
    let given = NEARNESS.into_iter().find_map(|key| Some((key, pod.annotations.get(key)?)));
    if let Some((key, text)) = given {
        let must = || "one of none, link, link-strict, numa, numa-strict".to_owned();
        let wrong =
            || Refusal::Annotation { key: key.to_owned(), value: Quoted::new(text), must: must() };
        return nearness(text.trim()).ok_or_else(wrong);
    }
    if pod.annotations.get(HAMI_NUMA_BIND).is_some_and(|text| text.trim() == "true") {
        return Ok(Affinity::Require(Near::Numa));
    }
    let mut words = pod.annotations.get(HAMI_DEVICE).into_iter().flat_map(|text| text.split(','));
    Ok(words.find_map(|word| hami_wish(word.trim())).unwrap_or_default())
}

fn nearness(text: &str) -> Option<Affinity> {
    Some(match text.to_ascii_lowercase().as_str() {
        "" | "none" => Affinity::Any,
        "link" => Affinity::Prefer(Near::Link),
        "link-strict" => Affinity::Require(Near::Link),
        "numa" => Affinity::Prefer(Near::Numa),
        "numa-strict" => Affinity::Require(Near::Numa),
        _ => return None,
    })
}

/// What HAMi's words for nearness mean.
fn hami_wish(word: &str) -> Option<Affinity> {
    match word {
        "topology-aware" => Some(Affinity::Prefer(Near::Link)),
        "numa" => Some(Affinity::Prefer(Near::Numa)),
        _ => None,
    }
}

fn refused(key: &str, text: &str, settings: &Settings) -> Refusal {
    let allowed: Vec<&str> = settings.policies.iter().map(|policy| policy.as_str()).collect();
    let must = match allowed.as_slice() {
        [] => "left out: pods may not choose a policy in this cluster".to_owned(),
        _ => format!("one of {}", allowed.join(", ")),
    };
    Refusal::Annotation { key: key.to_owned(), value: Quoted::new(text), must }
}
