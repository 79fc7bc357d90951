//! Pods, cards and placements for tests.

use std::collections::BTreeMap;

use dialect::{Asked, Refusal, Settings, WriteError, Written};
use model::arb::{card, container_name, node_name};
use model::{
    Claim, ContainerPlacement, Cores, Device, DeviceId, Grant, Mebibytes, MemoryAsk, Part,
    Placement, Pod, Portion, Role, Share, UnixNanos,
};
use serde_json::{Value, json};

/// Where pods are bound.
pub(crate) const NODE: &str = "gpu-1";
/// When nanogpu took over, a moment before it, and one after.
pub(crate) const TAKE_OVER: &str = "2026-06-01T12:00:00Z";
pub(crate) const BEFORE: &str = "2026-06-01T11:59:59Z";
pub(crate) const AFTER: &str = "2026-06-01T12:00:01Z";

/// Resources or annotations, and how much of them.
pub(crate) type Amounts<'a> = &'a [(&'a str, &'a str)];

/// A pod in the making.
#[derive(Clone)]
pub(crate) struct Draft(Value);

/// A pod without containers.
pub(crate) fn pod() -> Draft {
    Draft(json!({
        "metadata": {"name": "train", "namespace": "team", "uid": "u-1", "annotations": {}},
        "spec": {"containers": [], "initContainers": []},
        "status": {},
    }))
}

impl Draft {
    /// With a container of these limits.
    pub(crate) fn app(self, name: &str, limits: Amounts) -> Self {
        self.container("containers", name, limits, &[], None)
    }

    /// With a container of these limits and requests.
    pub(crate) fn app_with(self, name: &str, limits: Amounts, requests: Amounts) -> Self {
        self.container("containers", name, limits, requests, None)
    }

    /// With an init container.
    pub(crate) fn init(self, name: &str, limits: Amounts) -> Self {
        self.container("initContainers", name, limits, &[], None)
    }

    /// With an init container that stays.
    pub(crate) fn sidecar(self, name: &str, limits: Amounts) -> Self {
        self.container("initContainers", name, limits, &[], Some("Always"))
    }

    fn container(
        mut self,
        list: &str,
        name: &str,
        limits: Amounts,
        requests: Amounts,
        restart: Option<&str>,
    ) -> Self {
        let [limits, requests] =
            [limits, requests].map(|amounts| amounts.iter().copied().collect::<BTreeMap<_, _>>());
        let resources = json!({"limits": limits, "requests": requests});
        let container = json!({"name": name, "resources": resources, "restartPolicy": restart});
        self.0["spec"][list].as_array_mut().expect("a list").push(container);
        self
    }

    /// With an annotation.
    pub(crate) fn annotate(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    /// With annotations.
    pub(crate) fn annotate_all(self, annotations: Amounts) -> Self {
        annotations.iter().fold(self, |pod, (key, value)| pod.annotate(key, value))
    }

    /// Without an annotation.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.0["metadata"]["annotations"].as_object_mut().expect("a map").remove(key);
        self
    }

    /// At work on [`NODE`], bound at this time.
    pub(crate) fn bound(mut self, at: &str) -> Self {
        self.0["spec"]["nodeName"] = NODE.into();
        let bound = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": at});
        self.0["status"] = json!({"phase": "Running", "conditions": [bound]});
        self
    }

    /// With anything else, by its path in the API's JSON.
    pub(crate) fn set(mut self, path: &str, value: Value) -> Self {
        *self.0.pointer_mut(path).expect("a path that is there") = value;
        self
    }

    pub(crate) fn build(&self) -> Pod {
        Pod::from_json(&self.0.to_string()).expect("a pod")
    }

    /// What it asks where every dialect is spoken.
    pub(crate) fn read(&self) -> Asked {
        self.read_by(&Settings::all_dialects()).expect("a request").expect("something asked")
    }

    pub(crate) fn read_by(&self, settings: &Settings) -> Result<Option<Asked>, Refusal> {
        dialect::read(&self.build(), settings)
    }

    /// The sentence that refuses it.
    pub(crate) fn refusal(&self) -> String {
        self.read_by(&Settings::all_dialects()).expect_err("a refusal").to_string()
    }
}

/// Every dialect spoken, and taken over at [`TAKE_OVER`].
pub(crate) fn taken_over() -> Settings {
    Settings { took_over_at: Some(TAKE_OVER.into()), ..Settings::all_dialects() }
}

/// What one container of these limits asks of each of how many cards.
pub(crate) fn asks(limits: Amounts) -> (u32, Part) {
    let request = pod().app("main", limits).read().request;
    let [container] = &request.containers[..] else { panic!("one container: {request:?}") };
    (container.cards, container.part)
}

/// What the author of one container of these limits is told.
pub(crate) fn notes(limits: Amounts) -> Vec<String> {
    pod().app("main", limits).read().notes
}

pub(crate) fn whole(cards: u32) -> (u32, Part) {
    (cards, Part::Whole)
}

pub(crate) fn exact(cards: u32, cores: u32, memory: u64) -> (u32, Part) {
    (cards, part(cores, memory))
}

pub(crate) fn percent(cards: u32, cores: u32, memory: u32) -> (u32, Part) {
    let memory = MemoryAsk::Percent(Cores(memory));
    (cards, Part::Share { cores: Cores(cores), memory })
}

pub(crate) fn part(cores: u32, memory: u64) -> Part {
    Part::Share { cores: Cores(cores), memory: MemoryAsk::Exact(Mebibytes(memory)) }
}

/// Four cards of 16 GiB. No card's device node has the number of its place, nor of any other's.
pub(crate) fn cards() -> Vec<Device> {
    (0..4).map(|index| Device { minor: 7 - index, ..card(index) }).collect()
}

/// A part of the card at this index.
pub(crate) type Granted = (u32, Portion);

pub(crate) fn share(index: u32, cores: u32, memory: u64) -> Granted {
    (index, Portion::Share(Share { cores: Cores(cores), memory: Mebibytes(memory) }))
}

pub(crate) fn all_of(index: u32) -> Granted {
    (index, Portion::Whole)
}

/// A placement on [`NODE`].
pub(crate) fn place(containers: &[(&str, Role, &[Granted])]) -> Placement {
    let container = |(name, role, granted): &(&str, Role, &[Granted])| ContainerPlacement {
        name: container_name(name),
        role: *role,
        grants: granted
            .iter()
            .map(|(index, portion)| Grant { device: card(*index).id, portion: *portion })
            .collect(),
    };
    Placement::new(node_name(NODE), containers.iter().map(container).collect()).expect("valid")
}

/// A placement of all that was asked: the n-th container's cards start at the n-th card, but for
/// pods that stay on one.
pub(crate) fn place_asked(asked: &Asked, cards: &[Device]) -> Placement {
    let containers = asked.request.containers.iter().enumerate().map(|(n, container)| {
        let first = if asked.request.one_card { 0 } else { n };
        let cards = cards.iter().cycle().skip(first % cards.len());
        let cards = cards.take((container.cards as usize).min(4));
        ContainerPlacement {
            name: container.name.clone(),
            role: container.role,
            grants: cards
                .map(|card| Grant { device: card.id.clone(), portion: container.part.of(card) })
                .collect(),
        }
    });
    Placement::new(node_name(NODE), containers.collect()).expect("valid")
}

/// When placements are written.
pub(crate) const NOW: UnixNanos = UnixNanos(1_780_000_000_123_456_789);

/// What is written onto a pod.
pub(crate) fn write(
    draft: &Draft,
    placement: &Placement,
    cards: &[Device],
    settings: &Settings,
) -> Result<Written, WriteError> {
    let (asked, pod) = (draft.read(), draft.build());
    let lookup = |id: &DeviceId| cards.iter().find(|card| card.id == *id);
    dialect::write(&asked, &pod, placement, &lookup, settings, NOW)
}

/// The environment of one of a pod's containers.
pub(crate) fn env(
    draft: &Draft,
    container: &str,
    placement: &Placement,
    cards: &[Device],
) -> BTreeMap<String, String> {
    let (asked, pod, settings) = (draft.read(), draft.build(), Settings::all_dialects());
    let lookup = |id: &DeviceId| cards.iter().find(|card| card.id == *id);
    let container = pod.containers.iter().find(|c| c.name.as_str() == container).expect("there");
    let env = dialect::env(&asked, &pod, container, placement, &lookup, &settings, "1a2b3c4d");
    let unique: BTreeMap<_, _> = env.iter().cloned().collect();
    assert_eq!(unique.len(), env.len(), "one value for each variable: {env:?}");
    unique
}

/// A map to compare with.
pub(crate) fn map(entries: Amounts) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// What a pod holds after the take-over.
pub(crate) fn claim(draft: &Draft) -> Claim {
    dialect::observe(&draft.build(), &taken_over()).expect("a holder").claim
}
