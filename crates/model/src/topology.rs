//! How the devices of a node reach one another, worked out once for every set of them.
//!
//! Made when a node's inventory changes, and shared by all nodes that are wired alike. A device
//! is known by its place in the node's list.
//!
//! ```text
//!   worth of a set = sum over its pairs (the way over PCIe, and 100 for each NVLink)
//!                  + NUMA if all of it hangs on one NUMA node
//!                  + for each device, how near the next network card is
//! ```
//!
//! What nobody reported counts nothing. Up to 16 devices there are tables over all sets, so a
//! question is a look-up. Beyond, sums are added up when asked, and [`Topology::best`] knows
//! nothing: its table would not fit.

use std::sync::Arc;

use crate::device::{Device, Hop, Link};
use crate::places::Places;
use crate::request::Near;

/// Up to how many devices there are tables. For 16 they take 2.5 MB, which all nodes wired
/// alike share.
const TABULATED: usize = 16;

/// For one `NVLink`.
///
/// This and the numbers of [`hop_score`] are those of NVIDIA's go-gpuallocator
/// (`besteffort_policy.go`), whose choices people are used to.
const NVLINK: u32 = 100;

/// For a set on one NUMA node. More than PCIe alone can differ for a pair, less than an `NVLink`.
const NUMA: u32 = 50;

/// What two devices of one NUMA node are to each other beyond their link, where a single one is
/// to be taken. Less than any two ways over PCIe differ.
const NEIGHBOURS: u32 = 5;

/// How many steps the search for a set of linked devices may take. Real machines need a few.
const MOST_STEPS: u32 = 10_000;

/// What a topology is made from, and all that tells two apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Wiring {
    spots: Vec<Spot>,
    links: Vec<Link>,
}

/// Where one device sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    index: u32,
    numa: Option<u32>,
    nic: Option<Hop>,
}

impl Wiring {
    /// What `devices` and `links` say. Devices beyond the 64th are left out.
    pub fn new(devices: &[Arc<Device>], links: &[Link]) -> Self {
        let spot =
            |device: &Arc<Device>| Spot { index: device.index, numa: device.numa, nic: device.nic };
        Self { spots: devices.iter().take(Places::MOST).map(spot).collect(), links: links.to_vec() }
    }
}

/// How the devices of a node reach one another.
#[derive(Debug, Clone, Default)]
pub struct Topology {
    wiring: Wiring,
    /// The way over PCIe between every two devices, row by row.
    hops: Vec<Option<Hop>>,
    /// What the link between every two devices counts, row by row.
    pairs: Vec<u32>,
    /// For each device, those an `NVLink` joins it to.
    joined: Vec<Places>,
    /// The devices of each NUMA node.
    numa: Vec<Places>,
    /// For each device, what its network card counts.
    nic: Vec<u32>,
    /// For each set, the sum over its pairs.
    sums: Vec<u32>,
    /// For each set, its worth.
    worths: Vec<u32>,
    /// The size of the largest set that is near: linked, and on one NUMA node.
    most: [u32; 2],
    /// For each size from 2, and each set, the worth of the best set of that size in it.
    best: Vec<Vec<u32>>,
}

impl PartialEq for Topology {
    fn eq(&self, other: &Self) -> bool {
        // All else follows from it.
        self.wiring == other.wiring
    }
}

impl Eq for Topology {}

impl From<Wiring> for Topology {
    fn from(wiring: Wiring) -> Self {
        let count = wiring.spots.len();
        let mut topology = Self {
            hops: vec![None; count * count],
            pairs: vec![0; count * count],
            joined: vec![Places::NONE; count],
            numa: groups(&wiring.spots),
            nic: wiring.spots.iter().map(|spot| spot.nic.map_or(0, nic_score)).collect(),
            ..Self::default()
        };
        for link in &wiring.links {
            topology.enter(&wiring.spots, link);
        }
        topology.wiring = wiring;
        topology.most = [Near::Link, Near::Numa].map(|near| {
            let all = Places::first(count);
            (1..=all.len()).rev().find(|size| topology.may_have(near, *size, all)).unwrap_or(0)
        });
        if count <= TABULATED {
            topology.sums = topology.all_sums();
            let sets = (0..1 << count).map(Places::from_bits);
            topology.worths = sets.map(|set| topology.worth_of(set)).collect();
            topology.best = (2..=count / 2).map(|size| topology.all_best(count_of(size))).collect();
        }
        topology
    }
}

impl Topology {
    /// What `devices` and `links` come to. A link that is not between two of the devices counts
    /// nothing; of two between the same devices the last counts.
    pub fn new(devices: &[Arc<Device>], links: &[Link]) -> Self {
        Wiring::new(devices, links).into()
    }

    /// The links as they were reported.
    pub fn links(&self) -> &[Link] {
        &self.wiring.links
    }

    /// How many devices it knows.
    pub fn count(&self) -> usize {
        self.wiring.spots.len()
    }

    /// The way over PCIe between two devices, if known.
    pub fn hop(&self, one: usize, other: usize) -> Option<Hop> {
        self.cell(one, other).and_then(|cell| self.hops[cell])
    }

    /// What the link between two devices counts.
    pub fn pair(&self, one: usize, other: usize) -> u32 {
        self.cell(one, other).map_or(0, |cell| self.pairs[cell])
    }

    /// The devices of each NUMA node, lowest number first. Those of unknown NUMA are in none.
    pub fn numa(&self) -> &[Places] {
        &self.numa
    }

    /// The devices that an `NVLink` joins to this one.
    pub fn joined(&self, place: usize) -> Places {
        self.joined.get(place).copied().unwrap_or_default()
    }

    /// The sum over the pairs of `set`.
    pub fn sum(&self, set: Places) -> u32 {
        let set = set.and(Places::first(self.count()));
        match row(set).and_then(|row| self.sums.get(row)) {
            Some(sum) => *sum,
            None => set.into_iter().map(|place| self.sum_before(place, set)).sum(),
        }
    }

    /// What `set` is worth as a whole.
    pub fn worth(&self, set: Places) -> u32 {
        let set = set.and(Places::first(self.count()));
        match row(set).and_then(|row| self.worths.get(row)) {
            Some(worth) => *worth,
            None => self.worth_of(set),
        }
    }

    /// The worth of the best set of `size` in `among`; 0 if there is none, if there are no
    /// tables, or if `size` is one or more than half of all devices.
    pub fn best(&self, size: u32, among: Places) -> u32 {
        let table = size.checked_sub(2).and_then(|i| self.best.get(i as usize));
        let among = row(among.and(Places::first(self.count())));
        table.zip(among).and_then(|(table, row)| table.get(row)).copied().unwrap_or(0)
    }

    /// What is lost between the device at `place` and `others` if somebody takes it.
    pub fn bonds(&self, place: usize, others: Places) -> u32 {
        let numa = |place: usize| self.wiring.spots.get(place).and_then(|spot| spot.numa);
        let bond = |other: usize| {
            let neighbours = numa(place).is_some() && numa(place) == numa(other);
            self.pair(place, other) + if neighbours { NEIGHBOURS } else { 0 }
        };
        others.without(Places::one(place)).into_iter().map(bond).sum()
    }

    /// Whether the devices of `set` are near to one another. One alone always is.
    pub fn is_near(&self, near: Near, set: Places) -> bool {
        set.len() <= 1
            || match near {
                Near::Numa => self.on_one_numa(set),
                Near::Link => set
                    .into_iter()
                    .all(|place| set.without(Places::one(place)).is_within(self.joined(place))),
            }
    }

    /// Whether `among` may have a set of `size` whose devices are near to one another. No is
    /// certain; yes is too, but for wiring that no machine has.
    pub fn may_have(&self, near: Near, size: u32, among: Places) -> bool {
        if size <= 1 {
            return among.len() >= size;
        }
        match near {
            Near::Numa => self.numa.iter().any(|group| group.and(among).len() >= size),
            Near::Link => self.has_joined(size, among, &mut MOST_STEPS.clone()),
        }
    }

    /// How many devices the largest set has whose devices are near to one another.
    pub const fn most(&self, near: Near) -> u32 {
        let [link, numa] = self.most;
        match near {
            Near::Link => link,
            Near::Numa => numa,
        }
    }

    fn worth_of(&self, set: Places) -> u32 {
        let numa = if set.len() > 1 && self.on_one_numa(set) { NUMA } else { 0 };
        self.sum(set) + numa + set.into_iter().map(|place| self.nic[place]).sum::<u32>()
    }

    fn has_joined(&self, size: u32, among: Places, steps: &mut u32) -> bool {
        if size == 0 {
            return true;
        }
        let mut rest = among;
        while let Some(place) = rest.lowest().filter(|_| rest.len() >= size) {
            if *steps == 0 {
                return true;
            }
            *steps -= 1;
            rest = rest.without(Places::one(place));
            if self.has_joined(size - 1, rest.and(self.joined(place)), steps) {
                return true;
            }
        }
        false
    }

    fn on_one_numa(&self, set: Places) -> bool {
        self.numa.iter().any(|group| set.is_within(*group))
    }

    fn cell(&self, one: usize, other: usize) -> Option<usize> {
        let count = self.count();
        (one < count && other < count).then(|| one * count + other)
    }

    fn enter(&mut self, spots: &[Spot], link: &Link) {
        let place = |index| spots.iter().position(|spot| spot.index == index);
        let (Some(a), Some(b)) = (place(link.a), place(link.b)) else { return };
        if a == b {
            return;
        }
        for (one, other) in [(a, b), (b, a)] {
            let cell = one * spots.len() + other;
            self.hops[cell] = Some(link.hop);
            self.pairs[cell] = hop_score(link.hop) + NVLINK * u32::from(link.nvlinks);
            let other = Places::one(other);
            self.joined[one] = match link.nvlinks {
                0 => self.joined[one].without(other),
                _ => self.joined[one].or(other),
            };
        }
    }

    /// The sum over the pairs of `place` with those of `set` that come before it.
    fn sum_before(&self, place: usize, set: Places) -> u32 {
        let before = set.and(Places::first(place));
        before.into_iter().map(|other| self.pair(place, other)).sum()
    }

    fn all_sums(&self) -> Vec<u32> {
        let mut sums = vec![0];
        for place in 0..self.count() {
            // The sets whose highest device this is: each is one of the earlier sets and it.
            for earlier in 0..sums.len() {
                let set = Places::from_bits(earlier as u64);
                sums.push(sums[earlier] + self.sum_before(place, set));
            }
        }
        sums
    }

    fn all_best(&self, size: u32) -> Vec<u32> {
        let mut best = vec![0; self.sums.len()];
        for row in 0..best.len() {
            let set = Places::from_bits(row as u64);
            best[row] = match set.len() {
                len if len < size => 0,
                len if len == size => self.worth(set),
                // A smaller set in it leaves one of its devices out.
                _ => set.into_iter().map(|place| best[row & !(1 << place)]).max().unwrap_or(0),
            };
        }
        best
    }
}

/// The place of `set` in a table.
fn row(set: Places) -> Option<usize> {
    usize::try_from(set.bits()).ok()
}

fn count_of(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

fn groups(spots: &[Spot]) -> Vec<Places> {
    let mut numbers: Vec<u32> = spots.iter().filter_map(|spot| spot.numa).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let group = |number: u32| {
        spots.iter().enumerate().filter(move |(_, s)| s.numa == Some(number)).map(|(i, _)| i)
    };
    numbers.into_iter().map(|number| group(number).collect()).collect()
}

const fn hop_score(hop: Hop) -> u32 {
    match hop {
        Hop::OneSwitch => 50,
        Hop::Switches => 40,
        Hop::HostBridge => 30,
        Hop::SameNode => 20,
        Hop::CrossSocket => 10,
    }
}

/// A tenth of what a link counts: how cards reach one another comes before how they reach others.
const fn nic_score(hop: Hop) -> u32 {
    hop_score(hop) / 10
}
