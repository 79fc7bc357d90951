//! Which cards are out of service, why, and when they return. No clock: the caller says the time.

use std::collections::{BTreeMap, BTreeSet};

use gpu::{Event, Found, xid};
use model::{DeviceId, Health, Moment};

/// A card that fails again waits twice as long, up to this many times.
const MOST_DOUBLINGS: u32 = 6;

/// The health of the node's cards.
#[derive(Debug, Default)]
pub struct Ward {
    probation: u64,
    sick: BTreeMap<DeviceId, Case>,
    cordoned: BTreeSet<DeviceId>,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    xid: Option<u64>,
    /// The last moment at which something was wrong.
    seen: Moment,
    times: u32,
    healed: bool,
}

/// Something people should know about a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// It left service.
    Left {
        /// Which card.
        device: DeviceId,
        /// Why, in words.
        why: String,
    },
    /// It is back.
    Returned {
        /// Which card.
        device: DeviceId,
    },
}

impl Ward {
    /// Cards return after `probation` milliseconds without trouble.
    pub fn new(probation: u64) -> Self {
        Self { probation, ..Self::default() }
    }

    /// A card reported something.
    pub fn heard(&mut self, event: &Event, all: &[DeviceId], now: Moment) -> Vec<News> {
        if xid::class(event.xid) == xid::Class::Application {
            return Vec::new();
        }
        let meant: Vec<DeviceId> = match &event.device {
            Some(device) => vec![device.clone()],
            // Nobody knows which, so none is trusted.
            None => all.to_vec(),
        };
        let why = format!("Xid {}: {}", event.xid, xid::meaning(event.xid));
        meant.into_iter().filter_map(|id| self.trouble(id, Some(event.xid), &why, now)).collect()
    }

    /// What there is now: cards that do not answer are sick, and those that were well long enough
    /// return.
    pub fn looked(&mut self, found: &Found, known: &[DeviceId], now: Moment) -> Vec<News> {
        let mut news = Vec::new();
        let answers = |id: &DeviceId| found.devices.iter().any(|device| device.id == *id);
        for id in known.iter().filter(|id| !answers(id)) {
            let why = found.unreadable.iter().find(|lost| lost.id.as_ref() == Some(id));
            let why = why.map_or("it does not answer", |lost| lost.reason);
            news.extend(self.trouble(id.clone(), None, why, now));
        }
        for (id, case) in &mut self.sick {
            let wait = self.probation << case.times.saturating_sub(1).min(MOST_DOUBLINGS);
            if !case.healed && answers(id) && now >= case.seen.after(wait) {
                case.healed = true;
                news.push(News::Returned { device: id.clone() });
            }
        }
        news
    }

    /// What people say: these are out of service.
    pub fn cordon(&mut self, devices: BTreeSet<DeviceId>) {
        self.cordoned = devices;
    }

    /// Whether `device` is out of service.
    pub fn health(&self, device: &DeviceId) -> Option<Health> {
        if self.sick.get(device).is_some_and(|case| !case.healed) {
            Some(Health::Sick)
        } else {
            self.cordoned.contains(device).then_some(Health::Cordoned)
        }
    }

    /// The Xid that took `device` out, if one did.
    pub fn xid(&self, device: &DeviceId) -> Option<u64> {
        self.sick.get(device).filter(|case| !case.healed).and_then(|case| case.xid)
    }

    fn trouble(
        &mut self,
        device: DeviceId,
        xid: Option<u64>,
        why: &str,
        now: Moment,
    ) -> Option<News> {
        let case = self.sick.entry(device.clone()).or_insert(Case {
            xid,
            seen: now,
            times: 0,
            healed: true,
        });
        case.seen = now;
        case.xid = xid.or(case.xid);
        if !case.healed {
            return None;
        }
        case.healed = false;
        case.times = case.times.saturating_add(1);
        Some(News::Left { device, why: why.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use gpu::Unreadable;
    use model::Profile;

    use super::*;

    fn id(card: usize) -> DeviceId {
        DeviceId::parse(&format!("GPU-{card}")).unwrap()
    }

    fn found(without: &[u32]) -> Found {
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        let devices = inventory.devices.iter().filter(|d| !without.contains(&d.index));
        let unreadable = |index: &u32| Unreadable {
            index: *index,
            id: Some(id(*index as usize)),
            reason: "it has fallen off the bus",
        };
        Found {
            driver: String::new(),
            devices: devices.map(|device| (**device).clone()).collect(),
            links: Vec::new(),
            unreadable: without.iter().map(unreadable).collect(),
        }
    }

    fn all() -> Vec<DeviceId> {
        (0..4).map(id).collect()
    }

    #[test]
    fn programs_are_no_trouble() {
        let mut ward = Ward::new(1000);
        let event = Event { device: Some(id(0)), xid: 31 };
        assert_eq!(ward.heard(&event, &all(), Moment(0)), []);
        assert_eq!(ward.health(&id(0)), None);
    }

    #[test]
    fn a_card_leaves_once_and_returns_after_its_probation() {
        let mut ward = Ward::new(1000);
        let event = Event { device: Some(id(2)), xid: 79 };
        let left = ward.heard(&event, &all(), Moment(0));
        assert!(
            matches!(&left[..], [News::Left { device, why }] if *device == id(2) && why.contains("79"))
        );
        assert_eq!(ward.heard(&event, &all(), Moment(10)), [], "told once");
        assert_eq!(ward.looked(&found(&[2]), &all(), Moment(20)), []);
        assert_eq!(ward.health(&id(2)), Some(Health::Sick));
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(1019)), [], "too early");
        assert_eq!(
            ward.looked(&found(&[]), &all(), Moment(1020)),
            [News::Returned { device: id(2) }]
        );
        assert_eq!(ward.health(&id(2)), None);
    }

    #[test]
    fn a_card_that_fails_again_waits_longer() {
        let mut ward = Ward::new(1000);
        let event = Event { device: Some(id(0)), xid: 48 };
        ward.heard(&event, &all(), Moment(0));
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(1000)).len(), 1);
        ward.heard(&event, &all(), Moment(2000));
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(3500)), []);
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(4000)).len(), 1);
    }

    #[test]
    fn an_event_of_no_card_is_any_card_s() {
        let mut ward = Ward::new(1000);
        assert_eq!(ward.heard(&Event { device: None, xid: 79 }, &all(), Moment(0)).len(), 4);
    }

    #[test]
    fn a_card_that_vanishes_without_a_word_is_sick() {
        let mut ward = Ward::new(1000);
        assert_eq!(ward.looked(&found(&[1]), &all(), Moment(0)).len(), 1);
        assert_eq!(ward.health(&id(1)), Some(Health::Sick));
    }

    #[test]
    fn people_take_cards_out_and_put_them_back() {
        let mut ward = Ward::new(1000);
        ward.cordon([id(3)].into());
        assert_eq!(ward.health(&id(3)), Some(Health::Cordoned));
        ward.cordon(BTreeSet::new());
        assert_eq!(ward.health(&id(3)), None);
    }
}
