//! What containers say of themselves, in files that they can write: hostile input, copied and never
//! mapped.

use std::io::ErrorKind;
use std::time::Duration;

use model::{Inventory, Portion};
use page::{Used, read_counters};

use crate::picture::Counted;
use crate::records::{Record, Records};
use crate::refereeing::Spoiled;

/// The counters of all shares that have some. Blocks: it reads a file for each.
///
/// What a file says is cut at what can be: the device's memory, and the time since the record was
/// made. A file that is short, foreign, of another version, or was spoiled of late counts nothing
/// and is named so.
pub fn counted(
    records: &Records,
    all: &[Record],
    inventory: &Inventory,
    spoiled: &Spoiled,
) -> Vec<Counted> {
    let (mut counted, mut bytes) = (Vec::new(), Vec::new());
    for record in all {
        let age = records.age(&record.name).unwrap_or_default();
        let grants = record.placement.grants(record.container.as_str());
        // The files are numbered as shares are, without the whole cards.
        let shares = grants.iter().filter(|grant| matches!(grant.portion, Portion::Share(_)));
        for (place, grant) in shares.enumerate() {
            let known = inventory.devices.iter().find(|device| device.id == grant.device);
            let most_memory = known.map_or(0, |device| device.memory.0.saturating_mul(1 << 20));
            let bounds = Used { most_memory, longest: nanoseconds(age) };
            let read = records.counters(&record.name, place, &mut bytes);
            // Where nothing is enforced there is nothing to count. The tenant cannot remove the file.
            if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                continue;
            }
            let believed = read.is_ok() && !spoiled.has(&record.name);
            counted.push(Counted {
                pod_name: record.pod_name.clone(),
                container: record.container.to_string(),
                device: grant.device.clone(),
                counters: believed.then(|| read_counters(&bytes, bounds).ok()).flatten(),
            });
        }
    }
    counted
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use model::codec::decode_placement;
    use model::{ContainerName, PodUid, Profile};
    use page::{Limits, Name, write_counters};

    use super::*;

    fn record() -> Record {
        Record {
            name: "x-1".into(),
            pod: PodUid::parse("u-1").unwrap(),
            pod_name: "team/a".into(),
            container: ContainerName::parse("main").unwrap(),
            placement: decode_placement("v1;n1;main=GPU-1:30%+4608Mi").unwrap(),
        }
    }

    /// A record with a file of counters, which a tenant replaces by `bytes`.
    fn said(bytes: &[u8]) -> Option<page::Counters> {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path().join("pages")).unwrap();
        let record = record();
        let name = |text| Name::new(text).unwrap();
        let limits = Limits {
            device: name("GPU-1"),
            pod: name("u-1"),
            container: name("main"),
            memory: 4608 << 20,
            cores: 30,
            burst: 30,
            place: 0,
            granted: 3000,
            tenants: 1,
        };
        records.write(&record, &[limits]).unwrap();
        std::fs::write(records.folder_of("x-1").join("0.counters"), bytes).unwrap();
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        let none = Spoiled::default();
        let counted = counted(&records, &[record], &inventory, &none);
        assert_eq!((counted.len(), counted[0].pod_name.as_str()), (1, "team/a"));
        counted[0].counters
    }

    #[test]
    fn without_pages_nothing_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path().join("pages")).unwrap();
        records.write(&record(), &[]).unwrap();
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        assert_eq!(counted(&records, &[record()], &inventory, &Spoiled::default()), []);
    }

    #[test]
    fn a_quiet_container_has_counted_nothing() {
        assert_eq!(said(&write_counters()), Some(page::Counters::default()));
    }

    #[test]
    fn hostile_short_and_newer_files_are_not_believed() {
        let mut hostile = write_counters();
        hostile[16..].fill(0xff);
        let read = said(&hostile).unwrap();
        assert!(read.implausible && read.memory <= 15360 << 20, "{read:?}");
        assert!(read.throttled < 1_000_000_000_000_000, "no longer than it has lived: {read:?}");
        let mut newer = write_counters();
        newer[8] = 99;
        assert_eq!((said(&newer), said(b"short"), said(b"")), (None, None, None));
    }
}
