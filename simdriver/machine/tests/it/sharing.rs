//! Who may take what: slices, modes, limits of control groups.

use std::path::PathBuf;

use machine::{
    Choices, Clock, ContextId, Description, DeviceId, EXCLUSIVE_PROCESS, Machine, Memory, MigError,
    PROHIBITED, Process, Progress, Refused, Setting, Work, profiles_of,
};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

fn machine(profile: &str) -> (tempfile::TempDir, &'static Machine) {
    let folder = tempfile::tempdir().unwrap();
    let choices = Choices { clock: Clock::Virtual, ..Choices::default() };
    let description = Description::from_profile(profile, &choices).unwrap();
    let machine = Machine::create(folder.path(), &description).unwrap();
    (folder, machine)
}

fn card(place: usize) -> DeviceId {
    DeviceId::new(place).unwrap()
}

fn ended(process: &Process, context: ContextId, width: u32, time: u64) -> u64 {
    let work = Work::Kernel { multiprocessors: width, nanoseconds: time };
    let ticket = process.submit(context, 0, work).unwrap();
    match process.wait(ticket) {
        Progress::Done(times) => times.ended,
        other => panic!("{other:?}"),
    }
}

#[test]
fn slices_have_memory_and_multiprocessors_of_their_own() {
    let (_folder, machine) = machine("dgx-a100");
    assert_eq!(machine.create_gpu_instance(0, 9, None), Err(MigError::NotSupported));
    machine.set_mig(0, true).unwrap();
    // Two of 3g.20gb fill the card's memory; the one slice that is left over cannot be had.
    let halves = [(); 2].map(|()| machine.create_gpu_instance(0, 9, None).unwrap());
    assert_eq!((halves[0].start, halves[1].start), (4, 0));
    assert_eq!(machine.create_gpu_instance(0, 9, None), Err(MigError::NoRoom));
    assert_eq!(machine.create_gpu_instance(0, 19, None), Err(MigError::NoRoom));
    let slices = halves.map(|half| machine.create_compute_instance(&half, 2).unwrap());
    assert_eq!(machine.multiprocessors(slices[0].device), 42);

    let process = machine.another_process().unwrap();
    let contexts = slices.map(|slice| process.open_context(slice.device).unwrap());
    let total = machine.memory(slices[0].device).unwrap().total;
    assert_eq!(total, 19968 * MIB);
    process.reserve(slices[0].device, Memory::Allocation, total - 300 * MIB).unwrap();
    let refused = process.reserve(slices[0].device, Memory::Allocation, 1);
    assert_eq!(refused, Err(Refused::OutOfMemory { asked: 1, free: 0 }));
    process.reserve(slices[1].device, Memory::Allocation, MIB).unwrap();
    // The card has what its slices have.
    assert_eq!(machine.memory(card(0)).unwrap().used, total + 301 * MIB);
    // A kernel for the whole card is no wider than the slice, and the slices do not take turns.
    assert_eq!(ended(&process, contexts[0], 108, 5 * MS), 5 * MS);

    assert_eq!(machine.destroy_compute_instance(&slices[1]), Err(MigError::InUse));
    assert_eq!(machine.set_mig(0, false), Err(MigError::InUse));
    process.leave();
    for (slice, half) in slices.iter().zip(&halves) {
        assert_eq!(machine.destroy_gpu_instance(half), Err(MigError::InUse));
        machine.destroy_compute_instance(slice).unwrap();
        machine.destroy_gpu_instance(half).unwrap();
    }
    machine.set_mig(0, false).unwrap();
}

#[test]
fn slices_of_one_instance_share_its_memory() {
    let (_folder, machine) = machine("hgx-h100");
    machine.set_mig(3, true).unwrap();
    let instance = machine.create_gpu_instance(3, 14, Some(2)).unwrap();
    let slices = [(); 2].map(|()| machine.create_compute_instance(&instance, 0).unwrap());
    assert_eq!(machine.create_compute_instance(&instance, 0), Err(MigError::NoRoom));
    assert_ne!(machine.mig_uuid(slices[0].device), machine.mig_uuid(slices[1].device));
    let process = machine.another_process().unwrap();
    process.reserve(slices[0].device, Memory::Pool, 20000 * MIB).unwrap();
    assert_eq!(machine.memory(slices[1].device).unwrap().free, 96 * MIB);
}

#[test]
fn every_model_that_can_be_cut_fits_its_sizes() {
    for name in model::profiles::names() {
        let profile = model::profiles::Profile::named(name).unwrap();
        for size in profiles_of(&profile.model.0) {
            assert!(
                size.memory_mib * u64::from(size.count) <= profile.memory.0,
                "{name}: {size:?}"
            );
            assert!(size.starts.iter().all(|start| start + size.size <= 8), "{name}: {size:?}");
        }
    }
}

#[test]
fn an_exclusive_card_takes_one_process() {
    let (_folder, machine) = machine("t4x4");
    machine.set(card(0), Setting::ComputeMode, EXCLUSIVE_PROCESS).unwrap();
    let (one, two) = (machine.another_process().unwrap(), machine.another_process().unwrap());
    let context = one.open_context(card(0)).unwrap();
    one.open_context(card(0)).unwrap();
    assert_eq!(two.open_context(card(0)), Err(Refused::Exclusive));
    two.open_context(card(1)).unwrap();
    one.close_context(context);
    one.leave();
    two.open_context(card(0)).unwrap();
    machine.set(card(2), Setting::ComputeMode, PROHIBITED).unwrap();
    assert_eq!(two.open_context(card(2)), Err(Refused::Exclusive));
}

/// The folder of this process's control group, where there is a hierarchy of the second version.
fn own_group() -> Option<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let folder = PathBuf::from(format!("/sys/fs/cgroup{path}"));
    folder.join("cgroup.procs").exists().then_some(folder)
}

#[test]
fn a_control_group_takes_no_more_than_its_limit() {
    let Some(group) = own_group() else {
        println!("skipped: there are no control groups of the second version here");
        return;
    };
    let (_folder, machine) = machine("t4x4");
    machine.set_memory_limit(0, &group, 0, 500 * MIB).unwrap();
    let process = machine.another_process().unwrap();
    process.open_context(card(0)).unwrap();
    process.reserve(card(0), Memory::Allocation, 200 * MIB).unwrap();
    let refused = process.reserve(card(0), Memory::Allocation, 1);
    assert_eq!(refused, Err(Refused::OutOfMemory { asked: 1, free: 0 }));
    // Other cards are not limited.
    process.reserve(card(1), Memory::Allocation, 1000 * MIB).unwrap();
    assert_eq!(machine.memory_limit(0, &group).unwrap().unwrap().used, 500 * MIB);
    assert_eq!(machine.memory_limit(1, &group).unwrap(), None);
    machine.set_memory_limit(0, &group, 0, u64::MAX).unwrap();
    process.reserve(card(0), Memory::Allocation, 1000 * MIB).unwrap();
}
