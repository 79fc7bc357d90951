//! What a node says of itself.

use std::collections::BTreeMap;
use std::error::Error;

use k8s_openapi::api::core::v1 as core;
use ledger::NodeFacts;
use model::codec::decode_inventory;
use model::{Bytes, Host, MilliCpu, NameError, NodeName, Quantity, names};

/// The facts of `node`: its host, its cards, and the tickets it offers for `identities`.
///
/// `pool_label` is the label that names a node's pool, where pools are used.
pub fn facts(
    node: &core::Node,
    identities: &[&str],
    pool_label: Option<&str>,
) -> Result<NodeFacts, NameError> {
    let name = NodeName::parse(node.metadata.name.as_deref().unwrap_or_default())?;
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let quantity = |resource: &str| {
        let text = allocatable.and_then(|all| all.get(resource))?;
        Quantity::parse(&text.0).ok()
    };
    let annotation = node.metadata.annotations.as_ref().and_then(|all| all.get(names::INVENTORY));
    let mut tickets: BTreeMap<String, u64> = identities
        .iter()
        .filter_map(|resource| {
            let offered = quantity(resource)?.whole()?;
            Some(((*resource).to_owned(), u64::try_from(offered).ok()?))
        })
        .collect();
    tickets.extend(dialect::tickets_alone(&tickets));
    let labels = node.metadata.labels.as_ref();
    Ok(NodeFacts {
        name,
        allocatable: Host {
            cpu: MilliCpu(quantity("cpu").map_or(0, Quantity::milli)),
            memory: Bytes(quantity("memory").map_or(0, Quantity::ceil)),
        },
        shunned: taints(node).any(|taint| taint.effect == "PreferNoSchedule"),
        pool: pool_label.and_then(|label| labels?.get(label)).cloned(),
        inventory: annotation.map(|text| decode_inventory(text).map_err(|error| told(&error))),
        tickets,
    })
}

fn taints(node: &core::Node) -> impl Iterator<Item = &core::Taint> {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten())
}

fn told(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_offers_what_its_kubelet_and_its_agent_say() {
        let inventory = r#"{\"v\":1,\"devices\":[{\"id\":\"GPU-1\",\"index\":0,\"minor\":0,\"model\":\"T4\",\"mem\":16384}]}"#;
        let text = format!(
            r#"{{"metadata":{{"name":"n-1","labels":{{"pool":"public"}},
                "annotations":{{"nano-gpu/inventory":"{inventory}"}}}},
              "status":{{"allocatable":{{"cpu":"7500m","memory":"1Gi","a/b":"300","c/d":"1"}}}}}}"#
        );
        let node: core::Node = serde_json::from_str(&text).unwrap();
        let facts = facts(&node, &["a/b", "e/f"], Some("pool")).unwrap();
        assert_eq!(facts.allocatable, Host { cpu: MilliCpu(7500), memory: Bytes(1 << 30) });
        assert_eq!(facts.tickets, BTreeMap::from([("a/b".to_owned(), 300)]));
        assert_eq!(facts.pool.as_deref(), Some("public"));
        assert_eq!(facts.inventory.unwrap().unwrap().devices.len(), 1);
    }

    #[test]
    fn what_a_node_only_measures_is_no_ticket_for_who_asks_for_nothing_else() {
        let alone = dialect::Dialect::Elastic.alone().unwrap();
        for (amount, offered) in [("40960", true), ("655360", false)] {
            let text = format!(
                r#"{{"metadata":{{"name":"n"}},"status":{{"allocatable":{{"{}":"{amount}"}}}}}}"#,
                alone.resource
            );
            let node: core::Node = serde_json::from_str(&text).unwrap();
            let facts = facts(&node, &[alone.resource], None).unwrap();
            assert!(facts.tickets.contains_key(alone.resource));
            assert_eq!(facts.tickets.contains_key(alone.tickets), offered, "{amount}");
        }
    }

    #[test]
    fn only_a_taint_that_asks_for_preference_makes_a_node_shunned() {
        for (effect, shunned) in [("PreferNoSchedule", true), ("NoSchedule", false)] {
            let text = format!(
                r#"{{"metadata":{{"name":"n"}},"spec":{{"taints":[{{"key":"k","effect":"{effect}"}}]}}}}"#
            );
            let node: core::Node = serde_json::from_str(&text).unwrap();
            assert_eq!(facts(&node, &[], None).unwrap().shunned, shunned, "{effect}");
        }
    }

    #[test]
    fn a_damaged_inventory_is_told_and_none_is_none() {
        let damaged = r#"{"metadata":{"name":"n","annotations":{"nano-gpu/inventory":"{"}}}"#;
        let node: core::Node = serde_json::from_str(damaged).unwrap();
        assert!(facts(&node, &[], None).unwrap().inventory.unwrap().is_err());
        let bare: core::Node = serde_json::from_str(r#"{"metadata":{"name":"n"}}"#).unwrap();
        assert_eq!(facts(&bare, &[], None).unwrap().inventory, None);
    }
}
