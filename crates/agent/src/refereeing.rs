//! Turns on the cards: a referee for each card on which containers with pages live.
//!
//! Looks at the records every while and when one came: what is there is what counts, after a restart
//! too. A container that is not refereed yet paces itself meanwhile.
//!
//! What tenants can write is kept in bounds here too: a file of counters that grew is cut back. They
//! can do that as often as they like, so what is told of one of them is told seldom.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use kubeapi::Told;
use model::PodUid;
use telemetry::Stopping;
use tokio::sync::mpsc;
use turns::{Pages, Referee, Rules};

use crate::pods::Pods;
use crate::records::{Record, Records, RecordsError, counters_below};
use crate::starting::chain;

/// How often the records are looked at, whatever happens.
const LOOK: Duration = Duration::from_secs(3);
/// And how often at most, while many come.
const SOON: Duration = Duration::from_millis(500);
/// How often at most something is told of a container.
const SELDOM: Duration = Duration::from_mins(5);

/// The containers whose file of counters was spoiled of late, by the names of their records.
#[derive(Debug, Clone, Default)]
pub struct Spoiled {
    // Held for a look only.
    since: Arc<Mutex<BTreeMap<String, Instant>>>,
}

impl Spoiled {
    /// Whether the container is one.
    pub fn has(&self, name: &str) -> bool {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.get(name).is_some_and(|at| at.elapsed() < SELDOM)
    }

    /// The container is one. Says whether that is news.
    fn add(&self, name: &str) -> bool {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|_, at| at.elapsed() < SELDOM);
        if since.contains_key(name) {
            return false;
        }
        since.insert(name.to_owned(), Instant::now());
        true
    }
}

/// The referees of a node.
#[derive(Debug, Default)]
pub struct Referees {
    cards: BTreeMap<String, Card>,
    /// Containers with pages, as they were when the folder was at that time.
    wanted: Wanted,
    at: Option<SystemTime>,
}

/// What a look at the records was.
enum Looked {
    /// None came or went since the last one.
    Same,
    /// They were read.
    Anew,
}

#[derive(Debug)]
struct Card {
    referee: Referee,
    seated: BTreeSet<String>,
    /// How often each container was late, and when something was told of it.
    late: BTreeMap<String, (u64, Option<Instant>)>,
}

/// A container's part of a card.
#[derive(Debug, Clone)]
struct Part {
    record: String,
    pod: PodUid,
    /// Its file of counters, below the folder of pages.
    counters: String,
    pages: Pages,
    door: PathBuf,
}

/// Containers by the device they have a part of.
type Wanted = BTreeMap<String, BTreeMap<String, Part>>;

impl Referees {
    /// Brings referees in line with the records.
    pub fn refresh(&mut self, records: &Records) {
        match self.look(records) {
            Ok(Looked::Same) if self.all_are_seated() => {
                for (device, card) in &mut self.cards {
                    card.note(device);
                }
                return;
            }
            Ok(_) => {}
            // Whoever is seated stays so.
            Err(error) => tracing::warn!(error = chain(&error), "referees stay as they are"),
        }
        self.cards.retain(|device, _| self.wanted.contains_key(device));
        for (device, containers) in &self.wanted {
            if !self.cards.contains_key(device) {
                let Some(part) = containers.values().next() else { continue };
                match Referee::start(&part.door, Rules::USUAL) {
                    Ok(referee) => {
                        let card = Card { referee, seated: BTreeSet::new(), late: BTreeMap::new() };
                        self.cards.insert(device.clone(), card);
                    }
                    Err(error) => {
                        tracing::warn!(device, error = chain(&error), "card without a referee");
                        continue;
                    }
                }
            }
            if let Some(card) = self.cards.get_mut(device) {
                card.refresh(device, containers);
                card.note(device);
            }
        }
    }

    /// Whether nobody waits for a seat.
    fn all_are_seated(&self) -> bool {
        self.cards.len() == self.wanted.len()
            && self.wanted.iter().all(|(device, containers)| {
                self.cards.get(device).is_some_and(|card| card.seated.len() == containers.len())
            })
    }

    /// Reads the records, if any came or went since.
    fn look(&mut self, records: &Records) -> Result<Looked, RecordsError> {
        let at = records.changed_before_now();
        if at.is_some() && at == self.at {
            return Ok(Looked::Same);
        }
        self.wanted = wanted(records, &records.list()?);
        self.at = at;
        Ok(Looked::Anew)
    }

    /// Cuts back the files that containers let grow, and says whose they were.
    pub fn cut_back(&self, records: &Records) -> BTreeMap<String, PodUid> {
        let parts = || self.wanted.values().flat_map(BTreeMap::values);
        let cut = records.cut_back(parts().map(|part| part.counters.as_str()));
        let grown = parts().filter(|part| cut.contains(part.counters.as_str()));
        grown.map(|part| (part.record.clone(), part.pod.clone())).collect()
    }
}

impl Card {
    fn refresh(&mut self, device: &str, containers: &BTreeMap<String, Part>) {
        for name in self.seated.iter().filter(|name| !containers.contains_key(*name)) {
            self.referee.unseat(name);
            self.late.remove(name);
        }
        self.seated.retain(|name| containers.contains_key(name));
        for (name, part) in containers {
            if self.seated.contains(name) {
                continue;
            }
            match self.referee.seat(name, part.pages.clone()) {
                Ok(()) => {
                    tracing::info!(device, container = name, "takes part in turns");
                    self.seated.insert(name.clone());
                }
                Err(error) if self.may_tell(name) => {
                    tracing::warn!(
                        device,
                        container = name,
                        error = chain(&error),
                        "cannot take part in turns"
                    );
                }
                Err(_) => {}
            }
        }
    }

    /// Tells what the referee noted of containers.
    fn note(&mut self, device: &str) {
        for noted in self.referee.troubles() {
            let known = self.late.entry(noted.name.clone()).or_default();
            let before = std::mem::replace(&mut known.0, noted.late);
            if (noted.late > before || noted.unreadable) && self.may_tell(&noted.name) {
                tracing::warn!(
                    device,
                    container = noted.name,
                    late = noted.late,
                    unreadable = noted.unreadable,
                    "kept its turn too long, or spoiled its counters"
                );
            }
        }
    }

    /// Whether nothing was told of a container for long.
    fn may_tell(&mut self, name: &str) -> bool {
        let (_, told) = self.late.entry(name.to_owned()).or_default();
        let may = told.is_none_or(|told| told.elapsed() >= SELDOM);
        if may {
            *told = Some(Instant::now());
        }
        may
    }
}

fn wanted(records: &Records, all: &[Record]) -> Wanted {
    let mut wanted = Wanted::new();
    for record in all {
        let folder = records.folder_of(&record.name);
        for place in 0.. {
            let file = |kind: &str| folder.join(format!("{place}.{kind}"));
            let Ok(bytes) = std::fs::read(file("limits")) else { break };
            // Pages of a version before this have no door; their containers pace themselves.
            let Ok(limits) = page::read_limits(&bytes) else { continue };
            if !file("door").is_file() {
                continue;
            }
            let part = Part {
                record: record.name.clone(),
                pod: record.pod.clone(),
                counters: counters_below(&record.name, place),
                pages: Pages { limits: file("limits"), counters: file("counters") },
                door: file("door"),
            };
            let device = limits.device.as_str().to_owned();
            let name = format!("{}/{place}", record.name);
            wanted.entry(device).or_default().insert(name, part);
        }
    }
    wanted
}

/// Keeps referees in line until a signal asks to stop.
pub async fn referee(
    records: Records,
    pods: Pods,
    spoiled: Spoiled,
    tell: mpsc::Sender<Told>,
    mut stopping: Stopping,
) {
    let mut referees = Referees::default();
    loop {
        let looked = {
            let records = records.clone();
            tokio::task::spawn_blocking(move || {
                referees.refresh(&records);
                let grown = referees.cut_back(&records);
                (referees, grown)
            })
        };
        let begun = Instant::now();
        let grown;
        (referees, grown) = looked.await.unwrap_or_default();
        for (name, uid) in grown {
            if !spoiled.add(&name) {
                continue;
            }
            let pod = pods.all().get(&uid).cloned();
            tracing::warn!(name, pod = pod.as_ref().map(|pod| pod.id.to_string()), "counters grew");
            let Some(pod) = pod else { continue };
            let note =
                "the pod let its file of counters grow; it was cut back, and its own numbers \
                        are not believed"
                    .to_owned();
            let told =
                Told { pod: pod.id.clone(), reason: "GpuCountersSpoiled", note, warning: true };
            // A queue that is full of events loses this one; the metric has it too.
            let _ = tell.try_send(told);
        }
        tokio::select! {
            () = stopping.asked() => return,
            () = tokio::time::sleep(LOOK) => {}
            () = records.came() => tokio::time::sleep(SOON.saturating_sub(begun.elapsed())).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{ContainerName, PodUid};
    use page::{Limits, Name};

    use super::*;
    use crate::records::Record;

    fn write(records: &Records, name: &str) {
        let text = |text: &str| Name::new(text).unwrap();
        let limits = Limits {
            device: text("GPU-1"),
            pod: text("u-1"),
            container: text("main"),
            memory: 1 << 30,
            cores: 30,
            burst: 30,
            place: 0,
            granted: 3000,
            tenants: 1,
        };
        let record = Record {
            name: name.into(),
            pod: PodUid::parse("u-1").unwrap(),
            pod_name: "team/a".into(),
            container: ContainerName::parse("main").unwrap(),
            placement: model::codec::decode_placement("v1;n1;main=GPU-1:30%+4608Mi").unwrap(),
        };
        records.write(&record, &[limits]).unwrap();
    }

    #[test]
    fn containers_of_a_card_have_one_referee_and_one_door() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path().join("pages")).unwrap();
        write(&records, "x-1");
        write(&records, "x-2");
        let door =
            |name: &str| std::fs::metadata(records.folder_of(name).join("0.door")).unwrap().ino();
        assert_eq!(door("x-1"), door("x-2"));
        let mut referees = Referees::default();
        referees.refresh(&records);
        let names = |referees: &Referees| -> Vec<String> {
            referees.cards.values().flat_map(|card| card.seated.clone()).collect()
        };
        assert_eq!(names(&referees), ["x-1/0", "x-2/0"]);
        assert_eq!(referees.cards.len(), 1);
        records.remove("x-1").unwrap();
        referees.refresh(&records);
        assert_eq!(names(&referees), ["x-2/0"]);
        records.remove("x-2").unwrap();
        referees.refresh(&records);
        assert!(referees.cards.is_empty());
    }

    #[test]
    fn a_file_of_counters_that_grew_is_cut_back_and_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path().join("pages")).unwrap();
        write(&records, "x-1");
        write(&records, "x-2");
        let mut referees = Referees::default();
        referees.refresh(&records);
        let path = records.folder_of("x-1").join("0.counters");
        let grow = || std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 24);
        grow().unwrap();
        let grown = referees.cut_back(&records);
        assert_eq!(grown.keys().collect::<Vec<_>>(), ["x-1"]);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), page::CountersPage::SIZE as u64);
        assert_eq!(referees.cut_back(&records), BTreeMap::new());
        let spoiled = Spoiled::default();
        assert!(spoiled.add("x-1") && !spoiled.add("x-1"), "told once");
        assert!(spoiled.has("x-1") && !spoiled.has("x-2"));
    }

    #[test]
    fn what_a_container_can_make_happen_is_told_seldom() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path().join("pages")).unwrap();
        write(&records, "x-1");
        let mut referees = Referees::default();
        referees.refresh(&records);
        let card = referees.cards.values_mut().next().unwrap();
        assert!(card.may_tell("x-1/0") && !card.may_tell("x-1/0"));
        assert!(card.may_tell("x-2/0"), "another one is told");
    }

    #[test]
    fn while_records_cannot_be_read_who_is_seated_stays() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("pages");
        let records = Records::open(&pages).unwrap();
        write(&records, "x-1");
        let mut referees = Referees::default();
        referees.refresh(&records);
        std::fs::rename(&pages, folder.path().join("away")).unwrap();
        referees.refresh(&records);
        assert_eq!(referees.cards.values().next().unwrap().seated.len(), 1);
    }
}
