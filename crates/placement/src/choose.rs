//! Which cards of this node?

use model::{ContainerPlacement, Grant, Node, Placement};

use crate::Ask;
use crate::fit::solve;
use crate::refusal::{NodeRefusal, Refusal};

/// Chooses cards of `node` for every container of the pod, or says why none will do.
pub fn choose(node: &Node, ask: &Ask) -> Result<Placement, NodeRefusal> {
    let search = solve(node, ask)?;
    let containers = ask.request.containers.iter().enumerate().map(|(i, container)| {
        let grants = search.cards_of(i).map(|state| Grant {
            device: state.device.id.clone(),
            portion: container.part.of(&state.device),
        });
        let mut grants: Vec<(u32, Grant)> =
            search.cards_of(i).map(|state| state.device.index).zip(grants).collect();
        // A container sees its cards in the driver's order, whatever order they were picked in.
        grants.sort_by_key(|(index, _)| *index);
        ContainerPlacement {
            name: container.name.clone(),
            role: container.role,
            grants: grants.into_iter().map(|(_, grant)| grant).collect(),
        }
    });
    Placement::new(node.name.clone(), containers.collect()).map_err(|_| {
        // A request without containers, or with two of one name, is no request: there is
        // nothing on this node for it.
        NodeRefusal::new(
            node,
            ask,
            Refusal::NotTogether { containers: ask.request.containers.len() },
        )
    })
}
