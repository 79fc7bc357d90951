//! Why does this pod wait?

use std::sync::Arc;

use model::NodeName;
use placement::{Ask, Refusal, preempt, rank};
use serde_json::{Value, json};

use crate::preempting::Looked;
use crate::service::Service;
use crate::state::Picture;

/// The answer; nothing if no such pod asks for a card.
pub(super) fn why(service: &Service, namespace: &str, name: &str) -> Option<Value> {
    let decision = service.decisions.named(namespace, name);
    let Some(pending) = service.handle.pods.pending_named(namespace, name) else {
        let uid = service.handle.pods.bound_named(namespace, name)?;
        let picture = service.handle.picture();
        let nodes = picture.snapshot.nodes().iter();
        let mut holders = nodes.flat_map(|node| node.holders.iter().map(move |h| (node, h)));
        let node = holders.find(|(_, holder)| holder.pod.uid == uid).map(|(node, _)| &node.name);
        return Some(json!({"state": "bound", "node": node, "lastDecision": decision}));
    };
    let asked = match &pending.asked {
        Ok(asked) => asked,
        Err(refusal) => {
            let helps = ["change the pod: as written it can never run"];
            return Some(json!({
                "state": "refused", "reason": refusal.to_string(), "whatWouldHelp": helps,
            }));
        }
    };
    let uid = &asked.request.pod.uid;
    let picture = service.handle.picture();
    let seen = picture.seen_by(&asked.request);
    let ask = Ask::new(&seen, &asked.request, service.policy);
    let ranking = rank(&seen, &ask);
    let refused: Vec<Value> = ranking
        .refused
        .refused
        .iter()
        .map(|(node, refusal)| {
            json!({
                "node": node, "code": refusal.reason.code(), "reason": refusal.reason.to_string(),
                "forGood": refusal.reason.is_permanent(),
                "best": {
                    "memoryMiB": refusal.best.memory, "cores": refusal.best.cores,
                    "idleCards": refusal.best.idle, "cards": refusal.best.cards,
                },
            })
        })
        .collect();
    let fitting: Vec<&NodeName> = ranking.fitting.iter().map(|node| &node.name).collect();
    let mut helps =
        helps(&ranking.refused.refused.iter().map(|(_, r)| &r.reason).collect::<Vec<_>>());
    let preemption = preemption(service, &picture, &pending, asked, &mut helps);
    if let Some(node) = fitting.first() {
        helps.insert(0, format!("nothing: it fits on {node} now and is about to be tried again"));
    }
    Some(json!({
        "state": "pending",
        "summary": ranking.refused.to_string(),
        "fits": fitting,
        "refused": refused,
        "whatWouldHelp": helps,
        "preemption": preemption,
        "reservedOn": picture.reserved.get(uid),
        "nominated": pending.seen.nominated,
        "lastDecision": decision,
        "notes": asked.notes,
    }))
}

fn preemption(
    service: &Service,
    picture: &Arc<Picture>,
    pending: &crate::state::Pending,
    asked: &dialect::Asked,
    helps: &mut Vec<String>,
) -> Value {
    let last = service.preempting.outcome(&asked.request.pod.uid).map(|looked| match looked {
        Looked::Nobody(nobody) => nobody.to_string(),
        Looked::Evicted(found) => found.to_string(),
        Looked::Stopped(why) => why,
    });
    if !pending.seen.may_preempt {
        return json!({"now": "the pod's preemptionPolicy is Never", "last": last});
    }
    let seen = picture.seen_by(&asked.request);
    let ask = Ask::new(&seen, &asked.request, service.policy);
    let now = match preempt(&seen, &ask, &service.handle.pods.budgets()) {
        Ok(found) => {
            helps.push(found.to_string());
            found.to_string()
        }
        Err(nobody) => nobody.to_string(),
    };
    json!({"now": now, "last": last})
}

/// What a person could do, from the reasons.
fn helps(reasons: &[&Refusal]) -> Vec<String> {
    let mut helps = Vec::new();
    let mut add = |text: &str| {
        if !helps.iter().any(|known| known == text) {
            helps.push(text.to_owned());
        }
    };
    for reason in reasons {
        match reason {
            Refusal::NoAgent | Refusal::NoCards => add("nodes with cards on which the agent runs"),
            Refusal::StaleAgent => add("the agent of the silent nodes running again"),
            Refusal::BadInventory | Refusal::BadHolder => {
                add(
                    "mending what cannot be read on the closed nodes; their problem is in /api/v1/nodes",
                );
            }
            Refusal::Pool { .. } => add("a pool of nodes that the namespace may use"),
            Refusal::NoMatch { .. } => add("asking for another model of cards"),
            Refusal::TooFewCards { .. } | Refusal::TooFarApart { .. } => {
                add("asking for fewer cards, or for cards that may be further apart");
            }
            Refusal::CardTooSmall { .. } | Refusal::CardTooWeak { .. } => {
                add("asking for less of one card");
            }
            Refusal::OutOfService { .. } => add("cards coming back into service"),
            Refusal::Quota { .. } => add("a larger quota, or other pods of the namespace ending"),
            Refusal::NotOffered { .. } => add("the node's device plugin offering the resource"),
            _ => add("other pods ending, or asking for less"),
        }
    }
    helps
}
