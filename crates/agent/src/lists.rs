//! The lists the kubelet sees: health by number.
//!
//! A ticket is no card, and the kubelet picks tickets freely: which containers hold which says
//! nothing of where they run. So when a card leaves service, as many *free* tickets as it had become
//! unhealthy; those that containers hold stay healthy, and listed even if the card is gone for good,
//! because at its next start the kubelet rejects pods whose tickets are not.

use std::collections::BTreeSet;

use dialect::Served;
use kubelet::devices::{Device, IdSet};
use model::{Health, Inventory};

/// The tickets of `served`, given what containers hold. While nobody knows what they hold, any ticket
/// may be held, so all are healthy: what is sold is up to the scheduler, which knows the cards.
pub fn tickets(
    served: &Served,
    ids: &[String],
    inventory: &Inventory,
    held: Option<&IdSet>,
) -> Vec<Device> {
    let Some(held) = held else { return ids.iter().cloned().map(Device::healthy).collect() };
    let out = inventory.devices.iter().filter(|device| device.health != Health::Healthy);
    let mut unhealthy: u64 = out.map(|device| served.tickets_of(device)).sum();
    let mut list = Vec::with_capacity(ids.len());
    // From the end, so that the same ones stay unhealthy while others come and go.
    for id in ids.iter().rev() {
        if unhealthy > 0 && !held.contains(id) {
            unhealthy -= 1;
            list.push(Device::unhealthy(id.clone()));
        } else {
            list.push(Device::healthy(id.clone()));
        }
    }
    let known: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let gone = held.iter().filter(|id| !known.contains(id));
    list.extend(gone.map(Device::healthy));
    list.reverse();
    list
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dialect::{Dialect, Settings, served};
    use kubelet::devices::Health as TicketHealth;
    use model::Profile;
    use proptest::prelude::*;

    use super::*;

    fn nano() -> Served {
        served(&Settings { enabled: [Dialect::Nano].into(), ..Settings::default() }).remove(0)
    }

    fn t4s(sick: &[usize]) -> Inventory {
        let mut inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        for card in sick {
            Arc::make_mut(&mut inventory.devices[*card]).health = Health::Sick;
        }
        inventory
    }

    fn unhealthy(list: &[Device]) -> usize {
        list.iter().filter(|device| device.health == TicketHealth::Unhealthy).count()
    }

    #[test]
    fn held_tickets_stay_healthy_and_as_many_free_ones_do_not() {
        let ids = nano().ids(&t4s(&[])).unwrap();
        // A container of another card holds the very tickets that name the sick one.
        let held: IdSet = (0..100).map(|n| format!("nano-3-{n:02}")).collect();
        let list = tickets(&nano(), &ids, &t4s(&[3]), Some(&held));
        assert_eq!((list.len(), unhealthy(&list)), (400, 100));
        let bad =
            |device: &Device| device.health == TicketHealth::Unhealthy && held.contains(&device.id);
        assert!(!list.iter().any(bad));
    }

    #[test]
    fn a_full_node_keeps_every_ticket_that_is_held() {
        let ids = nano().ids(&t4s(&[])).unwrap();
        let held: IdSet = ids.iter().cloned().collect();
        assert_eq!(unhealthy(&tickets(&nano(), &ids, &t4s(&[0, 1]), Some(&held))), 0);
    }

    #[test]
    fn tickets_of_a_card_that_is_gone_stay_listed_while_they_are_held() {
        let less = Inventory { devices: t4s(&[]).devices[..2].to_vec(), links: Vec::new() };
        let ids = nano().ids(&less).unwrap();
        let held: IdSet = ["nano-3-07"].into_iter().collect();
        let list = tickets(&nano(), &ids, &less, Some(&held));
        assert_eq!((list.len(), unhealthy(&list)), (201, 0));
    }

    #[test]
    fn while_nobody_knows_what_is_held_no_ticket_is_taken_away() {
        let ids = nano().ids(&t4s(&[])).unwrap();
        let list = tickets(&nano(), &ids, &t4s(&[0, 1, 2, 3]), None);
        assert_eq!((list.len(), unhealthy(&list)), (400, 0));
    }

    proptest! {
        #[test]
        fn what_may_be_given_out_never_exceeds_what_is_in_service(
            sick in prop::collection::btree_set(0usize..4, 0..4),
            held in prop::collection::btree_set((0u32..4, 0u32..100), 0..300),
        ) {
            let inventory = t4s(&sick.iter().copied().collect::<Vec<_>>());
            let held: IdSet = held.iter().map(|(c, n)| format!("nano-{c}-{n:02}")).collect();
            let ids = nano().ids(&inventory).unwrap();
            let list = tickets(&nano(), &ids, &inventory, Some(&held));
            prop_assert_eq!(list.len(), 400);
            let free = list.iter().filter(|d| d.health == TicketHealth::Healthy && !held.contains(&d.id)).count();
            prop_assert_eq!(free, (400 - held.len()).saturating_sub(100 * sick.len()));
        }
    }
}
