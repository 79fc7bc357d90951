//! The real code over the simulated driver, as any program would load it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpu::nvml::Nvml;
use gpu::{Absent, Driver, Event, Gpus, MemoryErrors};
use machine::{Choices, Counter, Description, DeviceId, Fault, Machine, Memory, Switch, VARIABLE};
use model::{Inventory, Mig, Profile};

/// The library asks the environment for its machine, and there is one environment.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Bench {
    machine: &'static Machine,
    root: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(profile: &str, choices: &Choices) -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let root = tempfile::tempdir().expect("a folder");
        let description = Description::from_profile(profile, choices).expect("a profile");
        let machine = Machine::create(&root.path().join("m"), &description).expect("a machine");
        // SAFETY: all who read or change the environment hold the turn.
        unsafe { std::env::set_var(VARIABLE, root.path().join("m")) };
        let folder = root.path().join("driver/usr/lib64");
        fs::create_dir_all(&folder).expect("a folder");
        // A copy, which the loader takes for another library: one that a client before us has not
        // let go of yet would still be at its machine.
        fs::copy(library(), folder.join("libnvidia-ml.so.1")).expect("a copy");
        Self { machine, root, _turn: turn }
    }

    fn gpus(&self) -> Nvml {
        self.patient(Duration::from_secs(30))
    }

    fn patient(&self, patience: Duration) -> Nvml {
        Nvml::new(Driver::below(self.root.path().join("driver")), patience)
    }
}

/// The library that cargo built beside this test.
fn library() -> PathBuf {
    std::env::current_exe().expect("this test").parent().expect("its folder").join("libnvml.so")
}

fn card(place: usize) -> DeviceId {
    DeviceId::new(place).expect("a card")
}

/// What of an inventory both sides know.
fn comparable(inventory: &Inventory) -> Vec<(u32, u32, String, u64, Option<u32>)> {
    let devices = inventory.devices.iter();
    devices.map(|d| (d.index, d.minor, d.model.to_string(), d.memory.0, d.numa)).collect()
}

#[tokio::test]
async fn the_cards_of_two_machines_with_their_topology() {
    for profile in ["dgx-a100", "t4x4"] {
        let Ok(expected) = Profile::named(profile) else { continue };
        let expected = expected.inventory("GPU").unwrap();
        let bench = Bench::new(profile, &Choices::default());
        let found = bench.gpus().look().await.unwrap();
        assert_eq!(found.driver, "550.163.01");
        assert_eq!(found.unreadable, []);
        let inventory = gpu::inventory(Some(&found), &Inventory::default(), &|_| None);
        assert_eq!(comparable(&inventory), comparable(&expected), "{profile}");
        assert_eq!(inventory.links, expected.links, "{profile}");
        let described = bench.machine.description().cards.iter();
        let uuids: Vec<_> = described.map(|card| card.uuid.clone()).collect();
        let seen: Vec<_> = found.devices.iter().map(|d| d.id.to_string()).collect();
        assert_eq!(seen, uuids);
    }
}

#[tokio::test]
async fn memory_and_processes_are_those_of_all_processes() {
    let bench = Bench::new("dgx-a100", &Choices::default());
    let process = bench.machine.another_process().unwrap();
    process.open_context(card(1)).unwrap();
    process.reserve(card(1), Memory::Allocation, 512 << 20).unwrap();
    let measured = bench.gpus().measure().await.unwrap();
    assert_eq!(measured.len(), 8);
    assert_eq!(measured[1].processes.len(), 1);
    assert_eq!(measured[1].processes[0].pid, std::process::id());
    assert_eq!(measured[1].processes[0].used, measured[1].used);
    assert!(measured[1].used >= 512 << 20 && measured[0].used == 0);
    assert_eq!(measured[0].busy, Some(0));
}

#[tokio::test]
async fn a_lost_card_is_named_and_returns() {
    let bench = Bench::new("dgx-a100", &Choices::default());
    let gpus = bench.gpus();
    let before = gpus.look().await.unwrap();
    bench.machine.inject(Fault::Lose(card(2))).unwrap();
    let without = gpus.look().await.unwrap();
    assert_eq!(without.devices.len(), 7);
    assert_eq!(without.unreadable.len(), 1);
    assert_eq!(without.unreadable[0].index, 2);
    let known = gpu::inventory(Some(&before), &Inventory::default(), &|_| None);
    let now = gpu::inventory(Some(&without), &known, &|_| None);
    assert_eq!(now.devices.len(), 8);
    assert_eq!(now.devices[2].health, model::Health::Sick);
    assert_eq!(gpus.measure().await.unwrap().len(), 7);
    bench.machine.inject(Fault::Return(card(2))).unwrap();
    assert_eq!(gpus.look().await.unwrap(), before);
}

#[tokio::test]
async fn xids_are_told_with_their_card() {
    let bench = Bench::new("dgx-a100", &Choices::default());
    let gpus = bench.gpus();
    let id = gpus.look().await.unwrap().devices[3].id.clone();
    let mut events = gpus.events();
    assert_eq!(hears(&bench, 3, &mut events).await, Some(id));
}

#[tokio::test]
async fn a_driver_that_hangs_holds_nobody_up() {
    let bench = Bench::new("dgx-a100", &Choices::default());
    let gpus = bench.patient(Duration::from_millis(200));
    bench.patient(Duration::from_secs(30)).look().await.unwrap();
    bench.machine.inject(Fault::NvmlHang(Switch::On)).unwrap();
    // More questions than may wait: the later ones are answered at once.
    for _ in 0..8 {
        assert!(matches!(gpus.look().await, Err(Absent::Hanging { .. })));
    }
    bench.machine.inject(Fault::NvmlHang(Switch::Off)).unwrap();
    let again = async {
        while gpus.look().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.unwrap();
}

#[tokio::test]
async fn drivers_that_do_not_work_are_states() {
    let bench = Bench::new("dgx-a100", &Choices::default());
    let gpus = bench.gpus();
    bench.machine.inject(Fault::Mismatch(Switch::On)).unwrap();
    assert!(matches!(gpus.look().await, Err(Absent::Mismatch)));
    bench.machine.inject(Fault::Mismatch(Switch::Off)).unwrap();
    bench.machine.inject(Fault::NoDriver(Switch::On)).unwrap();
    assert!(matches!(gpus.look().await, Err(Absent::NoModule)));
    bench.machine.inject(Fault::NoDriver(Switch::Off)).unwrap();
    assert_eq!(gpus.look().await.unwrap().devices.len(), 8);

    let nowhere = Nvml::new(Driver::below("/nowhere"), Duration::from_secs(30));
    assert!(matches!(nowhere.look().await, Err(Absent::NoLibrary { .. })));
    let folder = bench.root.path().join("bad/usr/lib64");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libnvidia-ml.so.1"), b"not a library").unwrap();
    let bad = Nvml::new(
        Driver::below(Path::new(&bench.root.path().join("bad"))),
        Duration::from_secs(30),
    );
    assert!(matches!(bad.look().await, Err(Absent::BadLibrary { .. })));
}

#[tokio::test]
async fn a_library_that_was_exchanged_is_opened_anew() {
    let bench = Bench::new("dgx-a100", &Choices::default());
    let gpus = bench.gpus();
    let before = gpus.look().await.unwrap();
    let _events = gpus.events();
    // An update of the driver without a reload of the module: what is open goes on.
    bench.machine.inject(Fault::Mismatch(Switch::On)).unwrap();
    assert_eq!(gpus.look().await.unwrap(), before);
    let file = bench.root.path().join("driver/usr/lib64/libnvidia-ml.so.1");
    let new = file.with_extension("new");
    fs::copy(library(), &new).unwrap();
    fs::rename(&new, &file).unwrap();
    // What would be opened now does not, so that no container is given it.
    assert!(matches!(gpus.look().await, Err(Absent::Mismatch)));
    bench.machine.inject(Fault::Mismatch(Switch::Off)).unwrap();
    assert_eq!(gpus.look().await.unwrap(), before);
    // A driver that is taken away is not gone on with either.
    fs::remove_file(&file).unwrap();
    assert!(matches!(gpus.look().await, Err(Absent::NoLibrary { .. })));
}

#[tokio::test]
async fn a_card_in_mig_mode_is_a_parent() {
    let choices = Choices { mig: true, ..Choices::default() };
    let bench = Bench::new("dgx-a100", &choices);
    let found = bench.gpus().look().await.unwrap();
    assert!(found.devices.iter().all(|device| device.mig == Mig::Parent), "{found:?}");
}

#[tokio::test]
async fn mig_mode_is_switched_and_slices_come_and_go_while_we_look() {
    let bench = Bench::new("dgx-a100", &Choices::default());
    let gpus = bench.gpus();
    let look = || async { gpus.look().await.unwrap() };
    let before = look().await;
    let mut known = gpu::inventory(Some(&before), &Inventory::default(), &|_| None);
    bench.machine.set_mig(1, true).unwrap();
    let switched = look().await;
    assert_eq!(switched.devices.len(), 8);
    assert_eq!((&switched.devices[1].mig, &switched.devices[0].mig), (&Mig::Parent, &Mig::Off));

    let model = &bench.machine.description().cards[1].model;
    let profile = machine::profiles_of(model).iter().find(|it| it.slices == 3).unwrap();
    let instance = bench.machine.create_gpu_instance(1, profile.id, None).unwrap();
    let slice = bench.machine.create_compute_instance(&instance, 2).unwrap();
    let cut = look().await;
    assert_eq!(cut.devices.len(), 9);
    let parent = cut.devices[1].id.clone();
    let expected = Mig::Slice { parent, profile: profile.name.to_owned() };
    assert_eq!(cut.devices[8].mig, expected);
    known = gpu::inventory(Some(&cut), &known, &|_| None);
    assert_eq!(known.devices.len(), 9);

    // A slice that is gone was taken away on purpose: it is no sick card.
    bench.machine.destroy_compute_instance(&slice).unwrap();
    bench.machine.destroy_gpu_instance(&instance).unwrap();
    bench.machine.set_mig(1, false).unwrap();
    let after = gpu::inventory(Some(&look().await), &known, &|_| None);
    assert_eq!(after, gpu::inventory(Some(&before), &Inventory::default(), &|_| None));
}

#[tokio::test]
async fn errors_of_memory_are_counted_by_cards_that_have_ecc() {
    // Rows are remapped from Ampere on, pages retired before.
    for (profile, is_new) in [("dgx-a100", true), ("t4x4", false)] {
        let bench = Bench::new(profile, &Choices::default());
        let gpus = bench.gpus();
        let of = |place: usize| {
            let gpus = &gpus;
            async move {
                let found = gpus.look().await.unwrap();
                found.memory_errors[&found.devices[place].id]
            }
        };
        let none = MemoryErrors { ever: Some(0), ..MemoryErrors::default() };
        assert_eq!(of(1).await, none);
        let count = |counter, more| Fault::Count(card(1), counter, more);
        bench.machine.inject(count(Counter::UncorrectedVolatile, 2)).unwrap();
        bench.machine.inject(count(Counter::CorrectedVolatile, 7)).unwrap();
        assert_eq!(of(1).await, MemoryErrors { uncorrected: 2, ever: Some(2), ..none });
        bench.machine.inject(count(Counter::RemapPending, 1)).unwrap();
        let (bad_page, reset_advised) = (!is_new, is_new);
        let pending =
            MemoryErrors { uncorrected: 2, ever: Some(2), bad_page, reset_advised, ..none };
        assert_eq!(of(1).await, pending);
        // The driver is loaded anew, or the card is reset: the card itself forgets nothing.
        bench.machine.clear_counters(card(1), &[Counter::UncorrectedVolatile]).unwrap();
        let now = of(1).await;
        assert_eq!((now.uncorrected, now.ever, now.since(&pending)), (0, Some(2), 0));
        bench.machine.inject(count(Counter::RemapFailed, 1)).unwrap();
        assert!(of(1).await.repair_failed);
        assert_eq!(of(0).await, none, "the others are well");
    }
}

#[tokio::test]
async fn a_card_without_ecc_is_silent() {
    let bench = Bench::new("t4x4", &Choices::default());
    bench.machine.set(card(0), machine::Setting::Ecc, 0).unwrap();
    let found = bench.gpus().look().await.unwrap();
    assert!(!found.memory_errors.contains_key(&found.devices[0].id));
    assert_eq!(found.memory_errors.len(), 3);
}

#[tokio::test]
async fn a_card_that_is_plugged_in_is_found_when_its_node_is_there() {
    let bench = Bench::new("t4x4", &Choices::default());
    let dev = bench.root.path().join("dev");
    fs::create_dir(&dev).unwrap();
    for name in ["nvidiactl", "nvidia0", "nvidia1", "nvidia2"] {
        fs::write(dev.join(name), "").unwrap();
    }
    bench.machine.inject(Fault::Absent(card(3), Switch::On)).unwrap();
    let gpus = bench.gpus().watching(&dev);
    let mut events = gpus.events();
    assert_eq!(gpus.look().await.unwrap().devices.len(), 3);
    hears(&bench, 0, &mut events).await;
    bench.machine.inject(Fault::Absent(card(3), Switch::Off)).unwrap();
    assert_eq!(gpus.look().await.unwrap().devices.len(), 3, "NVML keeps to what it found");
    fs::write(dev.join("nvidia3"), "").unwrap();
    let found = gpus.look().await.unwrap();
    assert_eq!(found.devices.len(), 4);
    // Who listens for Xids hears those of the new card.
    let id = found.devices[3].id.clone();
    while hears(&bench, 3, &mut events).await != Some(id.clone()) {}
}

/// Reports an Xid until one is heard, and says of which card it is: whether anybody listens yet cannot
/// be seen from here.
async fn hears(
    bench: &Bench,
    place: usize,
    events: &mut tokio::sync::mpsc::Receiver<Event>,
) -> Option<model::DeviceId> {
    let heard = async {
        loop {
            bench.machine.inject(Fault::Xid(card(place), 48)).expect("a card that is there");
            let next = tokio::time::timeout(Duration::from_millis(200), events.recv());
            if let Ok(event) = next.await {
                break event;
            }
        }
    };
    let heard = tokio::time::timeout(Duration::from_secs(30), heard).await.expect("it is heard");
    heard.and_then(|event| event.device)
}

#[tokio::test]
async fn processes_under_mps_are_named_too() {
    let choices = Choices { mps: true, ..Choices::default() };
    let bench = Bench::new("t4x4", &choices);
    let process = bench.machine.another_process().unwrap();
    process.open_context(card(1)).unwrap();
    let measured = bench.gpus().measure().await.unwrap();
    assert_eq!(measured[1].processes.len(), 1);
    assert_eq!(measured[1].processes[0].used, measured[1].used);
}

#[tokio::test]
async fn a_driver_may_name_no_process() {
    let bench = Bench::new("t4x4", &Choices::default());
    let process = bench.machine.another_process().unwrap();
    process.open_context(card(1)).unwrap();
    bench.machine.inject(Fault::Nameless(Switch::On)).unwrap();
    let measured = bench.gpus().measure().await.unwrap();
    assert!(measured[1].used > 0 && measured[1].processes.is_empty(), "{measured:?}");
}
