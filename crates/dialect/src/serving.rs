//! What a node offers in each dialect: tickets the kubelet hands out, and amounts for people.
//!
//! A ticket is a count, never a card, whatever its ID says: the IDs are spelled as the original
//! systems spelled them because their tools print them.

use std::collections::{BTreeMap, BTreeSet};

use model::{Device, Inventory, Mebibytes, Mig};

use crate::asking::Alone;
use crate::settings::{Dialect, MemoryUnit, Settings};

/// More tickets than this on a node would not fit into the kubelet's messages and files.
pub const MOST_TICKETS: u64 = 50_000;

/// How often a card may be shared where the resource counts containers, as HAMi's default is.
const SHARERS: u64 = 10;

/// One resource that the kubelet is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// The dialect it belongs to.
    pub dialect: Dialect,
    /// Its name.
    pub resource: &'static str,
    /// The file name of its socket.
    pub socket: String,
    form: Form,
}

/// How IDs are spelled, and how many a card has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `nano-<card>-<NN>`, 100 a card.
    Nano,
    /// `<card>-<NN>`, 100 a card.
    Percent,
    /// `<card>-<n>`, one for each unit of memory.
    Memory(Mebibytes),
    /// `<resource>-<n>` over the whole node, 100 a card.
    Numbered,
    /// `<UUID>-_-<n>`, one for each unit of memory.
    Aliyun(Mebibytes),
    /// `<UUID>-<n>`, as many as may share a card.
    Sharers,
}

/// Why a resource cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServedError {
    /// More tickets than a node can have.
    #[error(
        "{resource} would need {tickets} device IDs on this node, and {MOST_TICKETS} are the most; {hint}"
    )]
    TooMany {
        /// The resource.
        resource: &'static str,
        /// How many it would need.
        tickets: u64,
        /// What to do.
        hint: &'static str,
    },
    /// More tickets than a node can have, of a resource that another stands beside.
    #[error(
        "{resource} would need {tickets} device IDs on this node, and {MOST_TICKETS} are the most; \
         it is only measured here, for containers that ask for {beside} too"
    )]
    Measured {
        /// The resource.
        resource: &'static str,
        /// How many it would need.
        tickets: u64,
        /// What a container must ask for beside it.
        beside: &'static str,
    },
}

/// What is served for the dialects that are enabled. Sockets have the names of the original
/// systems; where two dialects had the same name, the later one's has its domain before it.
pub fn served(settings: &Settings) -> Vec<Served> {
    let mut taken = BTreeSet::new();
    let mut all = Vec::new();
    for &dialect in &settings.enabled {
        for (&resource, (socket, form)) in
            dialect.identity_resources().iter().zip(forms(dialect, settings))
        {
            let domain = resource.split('/').next().unwrap_or_default();
            let mut socket = socket.to_owned();
            if !taken.insert(socket.clone()) {
                socket = format!("{domain}-{socket}");
                taken.insert(socket.clone());
            }
            all.push(Served { dialect, resource, socket, form });
        }
    }
    all
}

/// The sockets and forms of a dialect's identity resources, in their order.
fn forms(dialect: Dialect, settings: &Settings) -> Vec<(&'static str, Form)> {
    match dialect {
        Dialect::Nano => vec![("nano-gpu.sock", Form::Nano)],
        Dialect::NanoIo => vec![
            ("nano-gpu-core.sock", Form::Percent),
            ("nano-gpu-mem.sock", Form::Memory(Mebibytes(1024))),
        ],
        Dialect::Elastic => vec![
            ("elastic-gpushare-core.sock", Form::Percent),
            ("elastic-gpushare-mem.sock", Form::Memory(Mebibytes(1))),
        ],
        // No agent ever served these. The names are short: a socket's path has at most 107 bytes.
        Dialect::ElasticCom => vec![
            ("elastic-com-core.sock", Form::Percent),
            ("elastic-com-mem.sock", Form::Memory(Mebibytes(1))),
        ],
        Dialect::Tencent | Dialect::Inspur | Dialect::NvidiaVcuda => {
            vec![("vcore.sock", Form::Numbered)]
        }
        Dialect::Gpushare => {
            let unit = settings.gpushare_unit.size();
            let form = match settings.gpushare_unit {
                MemoryUnit::Gibibytes => Form::Aliyun(unit),
                // There are many of them, so they are short.
                MemoryUnit::Mebibytes => Form::Memory(unit),
            };
            vec![("aliyungpushare.sock", form)]
        }
        Dialect::Hami => vec![("nvidia-gpu.sock", Form::Sharers)],
        Dialect::VgpuManager => vec![("vgpu-number.sock", Form::Sharers)],
    }
}

impl Served {
    /// How many tickets `device` stands for: none if it is cut into slices, or is one.
    pub fn tickets_of(&self, device: &Device) -> u64 {
        if device.mig != Mig::Off {
            return 0;
        }
        match self.form {
            Form::Nano | Form::Percent | Form::Numbered => u64::from(device.cores.0),
            Form::Memory(unit) | Form::Aliyun(unit) => device.memory.0 / unit.0.max(1),
            Form::Sharers => SHARERS,
        }
    }

    /// How many cards at most a container with so many tickets has a share of. Whole cards, of which
    /// there may be more, are no shares.
    pub fn cards_at_most(&self, tickets: usize) -> usize {
        if self.form == Form::Sharers { tickets } else { 1 }
    }

    /// The variables of its container that are known when the tickets are drawn, before anyone knows
    /// for which pod. `ids_hash` is the name of their set.
    pub fn env(&self, tickets: usize, ids_hash: &str) -> Vec<(String, String)> {
        self.dialect.speaks().early_env(tickets, ids_hash)
    }

    /// How many tickets a node with these devices has, healthy or not.
    fn count(&self, inventory: &Inventory) -> Result<u64, ServedError> {
        let tickets: u64 = inventory.devices.iter().map(|device| self.tickets_of(device)).sum();
        if tickets <= MOST_TICKETS {
            return Ok(tickets);
        }
        let resource = self.resource;
        if let Some(alone) = self.dialect.alone().filter(|alone| alone.resource == resource) {
            return Err(ServedError::Measured { resource, tickets, beside: alone.beside });
        }
        let hint = match self.dialect {
            Dialect::Gpushare => "count it in GiB",
            _ => "leave this dialect out on this node",
        };
        Err(ServedError::TooMany { resource, tickets, hint })
    }

    /// All of them.
    pub fn ids(&self, inventory: &Inventory) -> Result<Vec<String>, ServedError> {
        let tickets = self.count(inventory)?;
        let mut ids = Vec::new();
        for device in &inventory.devices {
            let (card, count) = (device.index, self.tickets_of(device));
            ids.extend((0..count).map(|n| match self.form {
                Form::Nano => format!("nano-{card}-{n:02}"),
                Form::Percent | Form::Memory(_) => format!("{card}-{n:02}"),
                Form::Numbered => String::new(),
                Form::Aliyun(_) => format!("{}-_-{n}", device.id),
                Form::Sharers => format!("{}-{n}", device.id),
            }));
        }
        if self.form == Form::Numbered {
            ids = (0..tickets).map(|n| format!("{}-{n}", self.resource)).collect();
        }
        Ok(ids)
    }

    /// Whether `id` is spelled as ours are: what another plugin of this resource lists is not.
    pub fn is_ours(&self, id: &str) -> bool {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let pair = |text: &str| text.split_once('-').is_some_and(|(a, b)| number(a) && number(b));
        match self.form {
            Form::Nano => id.strip_prefix("nano-").is_some_and(pair),
            Form::Percent | Form::Memory(_) => pair(id),
            Form::Numbered => id
                .strip_prefix(self.resource)
                .and_then(|rest| rest.strip_prefix('-'))
                .is_some_and(number),
            Form::Aliyun(_) => id.split_once("-_-").is_some_and(|(_, n)| number(n)),
            // NVIDIA's own plugin lists bare UUIDs, whose last part is twelve digits.
            Form::Sharers => id.rsplit_once('-').is_some_and(|(_, n)| number(n) && n.len() <= 3),
        }
    }
}

/// What the node has of the resources that only measure, for people and the original tools.
pub fn measured(settings: &Settings, inventory: &Inventory) -> Vec<(&'static str, u64)> {
    let cards = inventory.devices.iter().filter(|device| device.mig == Mig::Off);
    let memory: u64 = cards.clone().map(|device| device.memory.0).sum();
    let count = cards.count() as u64;
    let mut all = Vec::new();
    for &dialect in &settings.enabled {
        match dialect {
            Dialect::Nano | Dialect::NvidiaVcuda => {
                all.extend(dialect.measure_resources().iter().map(|name| (*name, memory)));
            }
            Dialect::Tencent | Dialect::Inspur => {
                all.extend(dialect.measure_resources().iter().map(|name| (*name, memory / 256)));
            }
            Dialect::Gpushare => all.push(("aliyun.com/gpu-count", count)),
            // These never were in a node's status.
            Dialect::NanoIo
            | Dialect::Elastic
            | Dialect::ElasticCom
            | Dialect::Hami
            | Dialect::VgpuManager => {}
        }
    }
    // What is too much for tickets.
    all.extend(served(settings).iter().filter_map(|served| match served.count(inventory) {
        Err(ServedError::Measured { resource, tickets, .. }) => Some((resource, tickets)),
        Ok(_) | Err(ServedError::TooMany { .. }) => None,
    }));
    all
}

/// What a node that offers `tickets` has for containers that ask for a resource without the one that
/// identifies them elsewhere: all of it, unless there is so much that it is only measured.
pub fn tickets_alone(tickets: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let offered = |alone: Alone| {
        let count = tickets.get(alone.resource).filter(|count| **count <= MOST_TICKETS)?;
        Some((alone.tickets.to_owned(), *count))
    };
    Dialect::ALL.into_iter().filter_map(Dialect::alone).filter_map(offered).collect()
}

#[cfg(test)]
mod tests {
    use model::Profile;

    use super::*;

    fn t4s() -> Inventory {
        Profile::named("t4x4").unwrap().inventory("GPU").unwrap()
    }

    fn one(dialect: Dialect, settings: &Settings) -> Vec<Served> {
        let enabled = [dialect].into();
        served(&Settings { enabled, ..settings.clone() })
    }

    #[test]
    fn sockets_and_ids_are_those_of_the_original_systems() {
        let settings = Settings::default();
        let cases = [
            (Dialect::Nano, "nano-gpu.sock", "nano-0-00", "nano-3-99", 400),
            (Dialect::Elastic, "elastic-gpushare-core.sock", "0-00", "3-99", 400),
            (
                Dialect::Tencent,
                "vcore.sock",
                "tencent.com/vcuda-core-0",
                "tencent.com/vcuda-core-399",
                400,
            ),
            (
                Dialect::NvidiaVcuda,
                "vcore.sock",
                "nvidia.com/vcuda-core-0",
                "nvidia.com/vcuda-core-399",
                400,
            ),
            (Dialect::Gpushare, "aliyungpushare.sock", "GPU-0-_-0", "GPU-3-_-14", 60),
        ];
        for (dialect, socket, first, last, count) in cases {
            let served = &one(dialect, &settings)[0];
            let ids = served.ids(&t4s()).unwrap();
            assert_eq!(served.socket, socket);
            assert_eq!(
                (ids.first().unwrap().as_str(), ids.last().unwrap().as_str(), ids.len()),
                (first, last, count),
                "{dialect}"
            );
            assert!(ids.iter().all(|id| served.is_ours(id)), "{dialect}");
        }
    }

    #[test]
    fn no_two_resources_share_a_socket() {
        let all = served(&Settings::all_dialects());
        let sockets: BTreeSet<_> = all.iter().map(|served| served.socket.clone()).collect();
        assert_eq!(sockets.len(), all.len());
        assert!(sockets.contains("vcore.sock") && sockets.contains("inspur.com-vcore.sock"));
    }

    #[test]
    fn too_many_tickets_are_refused_with_the_unit_to_use() {
        let settings = Settings { gpushare_unit: MemoryUnit::Mebibytes, ..Settings::default() };
        let served = &one(Dialect::Gpushare, &settings)[0];
        let error = served.ids(&t4s()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "aliyun.com/gpu-mem would need 61440 device IDs on this node, and 50000 are the most; \
             count it in GiB"
        );
    }

    #[test]
    fn memory_that_is_too_much_for_tickets_is_measured() {
        let a100s = Profile::named("dgx-a100").unwrap().inventory("GPU").unwrap();
        let settings = Settings::default();
        let amounts = measured(&settings, &a100s);
        let all: u64 = a100s.devices.iter().map(|device| device.memory.0).sum();
        assert!(all > MOST_TICKETS);
        assert!(amounts.contains(&("elasticgpu.io/gpu-memory", all)), "{amounts:?}");
        let error = one(Dialect::Elastic, &settings)[1].ids(&a100s).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "elasticgpu.io/gpu-memory would need {all} device IDs on this node, and 50000 are the most; \
                 it is only measured here, for containers that ask for elasticgpu.io/gpu-core too"
            )
        );
        // In GiB there is room for tickets, and fewer cards of elastic-gpu have it too.
        let named = |amounts: &[(&str, u64)], name: &str| amounts.iter().any(|(n, _)| *n == name);
        assert!(!named(&amounts, "nano-gpu.io/gpu-memory"));
        let mut few = t4s();
        few.devices.truncate(2);
        assert!(!named(&measured(&settings, &few), "elasticgpu.io/gpu-memory"));
        assert_eq!(one(Dialect::Elastic, &settings)[1].ids(&few).unwrap().len(), 2 * 15360);
    }

    #[test]
    fn memory_alone_has_tickets_only_where_they_are_counted() {
        let (memory, alone) = ("elasticgpu.io/gpu-memory", Dialect::Elastic.alone().unwrap());
        let of = |count| tickets_alone(&[(memory.to_owned(), count)].into());
        assert_eq!(of(MOST_TICKETS), [(alone.tickets.to_owned(), MOST_TICKETS)]);
        assert_eq!(of(MOST_TICKETS + 1), []);
    }

    #[test]
    fn nvidias_own_plugin_is_told_apart() {
        let served = &one(Dialect::Hami, &Settings::all_dialects())[0];
        assert!(served.is_ours("GPU-3f1c2a90-0000-0000-0000-123456789012-7"));
        assert!(!served.is_ours("GPU-3f1c2a90-0000-0000-0000-123456789012"));
    }

    #[test]
    fn amounts_for_people() {
        let amounts = measured(&Settings::default(), &t4s());
        for expected in [
            ("nano-gpu/gpu-memory", 61440),
            ("tencent.com/vcuda-memory", 240),
            ("nvidia.com/vcuda-memory", 61440),
            ("aliyun.com/gpu-count", 4),
        ] {
            assert!(amounts.contains(&expected), "{amounts:?}");
        }
    }
}
