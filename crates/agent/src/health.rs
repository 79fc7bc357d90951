//! Which cards are out of service, why, and when they return. No clock: the caller says the time.

use std::collections::{BTreeMap, BTreeSet};

use gpu::{Event, Found, MemoryErrors, xid};
use model::{Device, DeviceId, Health, Inventory, Mig, Moment};

/// A card that fails again waits twice as long, up to this many times. Well for twice the longest of
/// these, it is as good as new.
const MOST_DOUBLINGS: u32 = 6;
/// A driver that answers again is believed at once, the second time after so many milliseconds, and
/// then after twice as many each time, up to a card's probation.
const DRIVER: u64 = 5_000;

/// The health of the node's cards.
#[derive(Debug, Default)]
pub struct Ward {
    probation: u64,
    sick: BTreeMap<DeviceId, Case>,
    cordoned: BTreeSet<DeviceId>,
    driver: Option<Case>,
    /// What cards said of errors in their memory in the last look.
    errors: BTreeMap<DeviceId, MemoryErrors>,
    /// What they had said when they were last well.
    well: BTreeMap<DeviceId, MemoryErrors>,
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
    /// It works, and should be reset when nobody uses it.
    ResetAdvised {
        /// Which card.
        device: DeviceId,
    },
    /// The driver does not answer, so no card of the node does.
    DriverLeft {
        /// Why, in words.
        why: String,
    },
    /// It answers again.
    DriverReturned,
}

impl Ward {
    /// Cards return after `probation` milliseconds without trouble.
    pub fn new(probation: u64) -> Self {
        Self { probation, ..Self::default() }
    }

    /// What an agent before us said: its sick cards begin their probation now. Who restarts an agent
    /// has healed no card.
    pub fn remember(&mut self, before: &Inventory, now: Moment) {
        let sick = before.devices.iter().filter(|device| device.health == Health::Sick);
        for device in sick {
            let case = Case { xid: None, seen: now, times: 1, healed: false };
            self.sick.insert(device.id.clone(), case);
        }
    }

    /// What cards had counted of errors when an agent before us saw them well: what came since is as
    /// if it came now.
    pub fn recall(&mut self, counted: &BTreeMap<DeviceId, MemoryErrors>) {
        self.errors.clone_from(counted);
        self.well.clone_from(counted);
    }

    /// What cards had counted of errors when they were last well.
    pub fn counted(&self) -> &BTreeMap<DeviceId, MemoryErrors> {
        &self.well
    }

    /// The driver did not answer.
    pub fn silent(&mut self, why: &str, now: Moment) -> Vec<News> {
        let forgiven = self.longest();
        let case = self.driver.get_or_insert(Case { xid: None, seen: now, times: 0, healed: true });
        let news = case.worse(now, forgiven).then(|| News::DriverLeft { why: why.to_owned() });
        news.into_iter().collect()
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
        if let Some(case) = self.driver.as_mut().filter(|case| !case.healed) {
            let doubled = DRIVER << case.times.saturating_sub(2).min(MOST_DOUBLINGS);
            let wait = if case.times < 2 { 0 } else { doubled.min(self.probation) };
            if now >= case.seen.after(wait) {
                case.healed = true;
                news.push(News::DriverReturned);
            }
        }
        let answers = |id: &DeviceId| found.devices.iter().any(|device| device.id == *id);
        for id in known.iter().filter(|id| !answers(id)) {
            let why = found.unreadable.iter().find(|lost| lost.id.as_ref() == Some(id));
            let why = why.map_or("it does not answer", |lost| lost.reason);
            news.extend(self.trouble(id.clone(), None, why, now));
        }
        news.extend(self.errors(found, now));
        for (id, case) in &mut self.sick {
            let wait = self.probation << case.times.saturating_sub(1).min(MOST_DOUBLINGS);
            if !case.healed && answers(id) && now >= case.seen.after(wait) {
                case.healed = true;
                news.push(News::Returned { device: id.clone() });
            }
        }
        for (id, errors) in &found.memory_errors {
            if self.health(id) != Some(Health::Sick) {
                self.well.insert(id.clone(), *errors);
            }
        }
        // Of a card that was exchanged nothing is kept.
        self.well.retain(|id, _| known.contains(id));
        news
    }

    /// What the memory of the cards says. Errors that could not be corrected are trouble when they
    /// come; a page that stays bad, and a row that could not be exchanged, as long as they do. What a
    /// card had counted when it was first seen says nothing of now.
    fn errors(&mut self, found: &Found, now: Moment) -> Vec<News> {
        let mut news = Vec::new();
        for (id, errors) in &found.memory_errors {
            let before = self.errors.insert(id.clone(), *errors).unwrap_or(MemoryErrors {
                uncorrected: errors.uncorrected,
                ever: errors.ever,
                ..MemoryErrors::default()
            });
            let more = errors.since(&before);
            let why = if errors.repair_failed {
                Some("a bad row of its memory could not be exchanged".to_owned())
            } else if errors.bad_page {
                Some("a bad page of its memory is in use until it is reset".to_owned())
            } else {
                (more > 0).then(|| format!("{more} memory errors that ECC could not correct"))
            };
            news.extend(why.and_then(|why| self.trouble(id.clone(), None, &why, now)));
            if errors.reset_advised && !before.reset_advised {
                news.push(News::ResetAdvised { device: id.clone() });
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
        if self.sick.get(device).into_iter().chain(&self.driver).any(|case| !case.healed) {
            Some(Health::Sick)
        } else {
            self.cordoned.contains(device).then_some(Health::Cordoned)
        }
    }

    /// The same of a device that may be a slice: it is as well as its card at most.
    pub fn health_of(&self, device: &Device) -> Option<Health> {
        let card = match &device.mig {
            Mig::Slice { parent, .. } => self.health(parent),
            Mig::Off | Mig::Parent => None,
        };
        let both = [self.health(&device.id), card];
        both.iter().flatten().find(|health| **health == Health::Sick).copied().or(both[0]).or(card)
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
        let forgiven = self.longest();
        let case = self.sick.entry(device.clone()).or_insert(Case {
            xid,
            seen: now,
            times: 0,
            healed: true,
        });
        case.xid = xid.or(case.xid);
        case.worse(now, forgiven).then(|| News::Left { device, why: why.to_owned() })
    }

    /// After so many milliseconds without trouble, earlier trouble is forgotten.
    fn longest(&self) -> u64 {
        self.probation.max(DRIVER) << (MOST_DOUBLINGS + 1)
    }
}

impl Case {
    /// There is trouble. Says whether that is news.
    fn worse(&mut self, now: Moment, forgiven: u64) -> bool {
        if self.healed && now >= self.seen.after(forgiven) {
            self.times = 0;
        }
        self.seen = now;
        if !self.healed {
            return false;
        }
        self.healed = false;
        self.times = self.times.saturating_add(1);
        true
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
            memory_errors: BTreeMap::new(),
        }
    }

    /// All cards answer, and the first says this of its memory.
    fn errors(errors: MemoryErrors) -> Found {
        Found { memory_errors: [(id(0), errors)].into(), ..found(&[]) }
    }

    fn uncorrected(uncorrected: u64) -> Found {
        errors(MemoryErrors { uncorrected, ..MemoryErrors::default() })
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
    fn a_card_that_was_well_for_long_starts_anew() {
        let mut ward = Ward::new(1000);
        let event = Event { device: Some(id(0)), xid: 48 };
        for time in [0, 2000] {
            ward.heard(&event, &all(), Moment(time));
            ward.looked(&found(&[]), &all(), Moment(time + 10_000));
        }
        ward.heard(&event, &all(), Moment(10_000_000));
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(10_001_000)).len(), 1);
    }

    #[test]
    fn who_restarts_an_agent_has_healed_no_card() {
        let mut before = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        std::sync::Arc::make_mut(&mut before.devices[1]).health = Health::Sick;
        let mut ward = Ward::new(1000);
        ward.remember(&before, Moment(0));
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(1)), []);
        assert_eq!((ward.health(&id(0)), ward.health(&id(1))), (None, Some(Health::Sick)));
        let back = ward.looked(&found(&[]), &all(), Moment(1000));
        assert_eq!(back, [News::Returned { device: id(1) }]);
    }

    #[test]
    fn a_driver_that_fails_again_and_again_is_believed_later_each_time() {
        let mut ward = Ward::new(60_000);
        let left = |why: &str| vec![News::DriverLeft { why: why.to_owned() }];
        assert_eq!(ward.silent("it hangs", Moment(0)), left("it hangs"));
        assert_eq!(ward.silent("it hangs", Moment(10)), [], "told once");
        assert_eq!(ward.health(&id(0)), Some(Health::Sick));
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(20)), [News::DriverReturned], "once");
        assert_eq!(ward.health(&id(0)), None);
        ward.silent("it hangs", Moment(30));
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(5_029)), []);
        assert_eq!(ward.health(&id(0)), Some(Health::Sick));
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(5_030)), [News::DriverReturned]);
        ward.silent("it hangs", Moment(6_000));
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(15_999)), []);
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(16_000)), [News::DriverReturned]);
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
    fn memory_errors_that_come_take_a_card_out_for_its_probation() {
        let mut ward = Ward::new(1000);
        assert_eq!(ward.looked(&uncorrected(3), &all(), Moment(0)), [], "of long ago");
        let left = ward.looked(&uncorrected(5), &all(), Moment(10));
        assert!(
            matches!(&left[..], [News::Left { device, why }] if *device == id(0) && why.starts_with("2 memory errors")),
            "{left:?}"
        );
        assert_eq!(ward.health(&id(0)), Some(Health::Sick));
        // A reset sets the count back, which is no trouble, and one more is.
        assert_eq!(ward.looked(&uncorrected(0), &all(), Moment(900)), []);
        let back = [News::Returned { device: id(0) }];
        assert_eq!(ward.looked(&uncorrected(0), &all(), Moment(1010)), back);
        assert_eq!(ward.looked(&uncorrected(1), &all(), Moment(2000)).len(), 1);
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(3999)), [], "twice as long");
        assert_eq!(ward.looked(&found(&[]), &all(), Moment(4000)), back, "ECC was turned off");
    }

    #[test]
    fn memory_errors_that_came_while_no_agent_looked_take_a_card_out() {
        let counts = |uncorrected, ever| {
            errors(MemoryErrors { uncorrected, ever: Some(ever), ..MemoryErrors::default() })
        };
        // The agent before us saw it well, then with errors, and died before it told anybody.
        let mut before = Ward::new(1000);
        before.looked(&counts(3, 9), &all(), Moment(0));
        assert_eq!(before.looked(&counts(4, 10), &all(), Moment(10)).len(), 1);
        assert_eq!(before.counted()[&id(0)].uncorrected, 3, "as it was when it was well");
        let mut ward = Ward::new(1000);
        ward.recall(before.counted());
        let left = ward.looked(&counts(4, 10), &all(), Moment(0));
        assert!(matches!(&left[..], [News::Left { why, .. }] if why.starts_with("1 memory")));
        assert_eq!(ward.looked(&counts(4, 10), &all(), Moment(999)), []);
        assert_eq!(ward.looked(&counts(4, 10), &all(), Moment(1000)).len(), 1, "well for long");
        assert_eq!(ward.counted()[&id(0)].uncorrected, 4);
        // While nobody looked the driver was loaded anew, which sets one of the counts back.
        let mut ward2 = Ward::new(1000);
        ward2.recall(ward.counted());
        assert_eq!(ward2.looked(&counts(0, 10), &all(), Moment(0)), []);
        ward2.recall(ward.counted());
        assert_eq!(ward2.looked(&counts(0, 11), &all(), Moment(10)).len(), 1);
        // Another card has its place: that has counted what it has, and the old one is forgotten.
        let mut ward = Ward::new(1000);
        ward.recall(&[(id(7), MemoryErrors::default())].into());
        assert_eq!(ward.looked(&counts(5, 5), &all(), Moment(0)), []);
        assert_eq!(ward.counted().keys().collect::<Vec<_>>(), [&id(0)]);
    }

    #[test]
    fn memory_that_stays_bad_keeps_a_card_out() {
        for bad in [
            MemoryErrors { bad_page: true, ..MemoryErrors::default() },
            MemoryErrors { repair_failed: true, ..MemoryErrors::default() },
        ] {
            let mut ward = Ward::new(1000);
            assert_eq!(ward.looked(&errors(bad), &all(), Moment(0)).len(), 1, "at the first look");
            assert_eq!(ward.looked(&errors(bad), &all(), Moment(5000)), []);
            assert_eq!(ward.health(&id(0)), Some(Health::Sick));
            assert_eq!(ward.looked(&uncorrected(0), &all(), Moment(6000)).len(), 1, "it was reset");
        }
    }

    #[test]
    fn a_row_that_waits_for_a_reset_is_told_once() {
        let mut ward = Ward::new(1000);
        let waits = errors(MemoryErrors { reset_advised: true, ..MemoryErrors::default() });
        let told = [News::ResetAdvised { device: id(0) }];
        assert_eq!(ward.looked(&waits, &all(), Moment(0)), told);
        assert_eq!(ward.looked(&waits, &all(), Moment(10)), []);
        assert_eq!(ward.health(&id(0)), None, "the bad row is out of use");
    }

    #[test]
    fn a_slice_is_as_well_as_its_card() {
        let mut ward = Ward::new(1000);
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        let mig = Mig::Slice { parent: id(0), profile: "1g.5gb".into() };
        let slice = Device { id: id(9), mig, ..Device::clone(&inventory.devices[0]) };
        assert_eq!(ward.health_of(&slice), None);
        ward.cordon([id(0)].into());
        assert_eq!(ward.health_of(&slice), Some(Health::Cordoned));
        ward.heard(&Event { device: Some(id(0)), xid: 48 }, &all(), Moment(0));
        assert_eq!(ward.health_of(&slice), Some(Health::Sick));
        assert_eq!(ward.health_of(&inventory.devices[1]), None);
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
