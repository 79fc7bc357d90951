//! Would this pod fit, where, and whom would it displace? Nothing is changed.

use dialect::{Asked, read as read_pod};
use model::Pod;
use model::codec::encode_placement;
use placement::{Ask, choose, preempt, rank};
use serde_json::{Value, json};

use crate::service::Service;

/// A pod that nobody created.
#[derive(Debug)]
pub(super) enum Simulated {
    /// It asks for no card.
    Nothing(Box<Pod>),
    /// It can never run as written.
    Never(Box<Pod>, dialect::Refusal),
    /// It asks.
    Asks(Box<Asked>),
}

impl Simulated {
    /// The namespace it would be in.
    pub(super) fn namespace(&self) -> String {
        match self {
            Self::Nothing(pod) | Self::Never(pod, _) => pod.id.namespace.clone(),
            Self::Asks(asked) => asked.request.pod.namespace.clone(),
        }
    }
}

/// Reads a pod's manifest, JSON or YAML.
pub(super) fn read(service: &Service, body: &[u8]) -> Result<Simulated, String> {
    let text = std::str::from_utf8(body).map_err(|_| "the body is no text".to_owned())?;
    let pod = match Pod::from_json(text) {
        Ok(pod) => pod,
        Err(error) => {
            let value: Value =
                serde_saphyr::from_str(text).map_err(|_| format!("not a pod: {error}"))?;
            Pod::from_json(&value.to_string()).map_err(|error| error.to_string())?
        }
    };
    Ok(match read_pod(&pod, &service.settings) {
        Ok(None) => Simulated::Nothing(Box::new(pod)),
        Ok(Some(asked)) => Simulated::Asks(Box::new(asked)),
        Err(refusal) => Simulated::Never(Box::new(pod), refusal),
    })
}

/// What would happen.
pub(super) fn simulate(service: &Service, simulated: &Simulated) -> Value {
    let asked = match simulated {
        Simulated::Nothing(_) => return json!({"outcome": "not-ours"}),
        Simulated::Never(_, refusal) => {
            return json!({"outcome": "refused", "reason": refusal.to_string()});
        }
        Simulated::Asks(asked) => asked,
    };
    let picture = service.handle.picture();
    let seen = picture.seen_by(&asked.request);
    let ask = Ask::new(&seen, &asked.request, service.policy);
    let ranking = rank(&seen, &ask);
    let fitting = ranking.fitting.iter().map(|node| {
        let placement = choose(node, &ask).ok().map(|made| encode_placement(&made));
        json!({"node": node.name, "placement": placement})
    });
    let fitting: Vec<Value> = fitting.take(20).collect();
    if !fitting.is_empty() {
        return json!({"outcome": "fits", "nodes": fitting, "notes": asked.notes});
    }
    let displaced = match preempt(&seen, &ask, &service.handle.pods.budgets()) {
        Ok(found) => {
            json!({"node": found.node, "pods": found.victims.iter().map(|v| v.pod.to_string()).collect::<Vec<_>>()})
        }
        Err(nobody) => json!({"nobody": nobody.to_string()}),
    };
    json!({
        "outcome": "waits", "summary": ranking.refused.to_string(), "displaces": displaced,
        "notes": asked.notes,
    })
}
