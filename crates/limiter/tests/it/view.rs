//! What programs are told of the device: the share, and the container's own processes.

use std::ffi::CString;

use crate::rig::{self, Driver, MIB, Rig, Share};

/// A container with 2 GiB of card 1, and a stranger beside it that holds 4 GiB.
fn rig() -> Rig {
    Rig::with(
        "dgx-a100",
        "550.163.01",
        &[Share { device: 1, memory: 2048 * MIB, cores: 30, burst: 30 }],
        |_| {},
    )
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Process {
    pid: u32,
    memory: u64,
    instances: [u32; 2],
}

fn list(nvml: &Driver, device: u64, room: u32) -> (u32, Vec<Process>) {
    let mut list = [Process::default(); 16];
    let mut count = room;
    let code = call!(nvml, nvmlDeviceGetComputeRunningProcesses_v3(device => u64, &raw mut count => *mut u32,
        list.as_mut_ptr() => *mut Process));
    (code, list[..count.min(16) as usize].to_vec())
}

#[test]
fn nvml_shows_the_share_and_nobody_else() {
    const TEST: &str = "nvml_shows_the_share_and_nobody_else";
    if rig::role().is_none() {
        let rig = rig();
        let stranger = rig.machine().process().unwrap();
        let card = machine::DeviceId::new(1).unwrap();
        stranger.open_context(card).unwrap();
        stranger.reserve(card, machine::Memory::Allocation, 4096 * MIB).unwrap();
        rig.run(TEST, "body");
        return;
    }
    let (cuda, nvml) = (Driver::load(), Driver::named("libnvidia-ml.so.1"));
    ok!(nvml, nvmlInit_v2());
    let (mut count, mut device, mut index) = (0_u32, 0_u64, 9_u32);
    ok!(nvml, nvmlDeviceGetCount_v2(&raw mut count => *mut u32));
    assert_eq!(count, 1, "of eight cards one is ours");
    ok!(nvml, nvmlDeviceGetHandleByIndex_v2(0 => u32, &raw mut device => *mut u64));
    assert_ne!(
        call!(nvml, nvmlDeviceGetHandleByIndex_v2(1 => u32, &raw mut device => *mut u64)),
        0
    );
    ok!(nvml, nvmlDeviceGetIndex(device => u64, &raw mut index => *mut u32));
    assert_eq!(index, 0);
    let other = CString::new(machine::Machine::find().unwrap().description().cards[0].uuid.clone())
        .unwrap();
    let mut not_ours = 0_u64;
    let code = call!(nvml, nvmlDeviceGetHandleByUUID(other.as_ptr() => *const i8, &raw mut not_ours => *mut u64));
    assert_eq!(code, 6, "another card is not found");

    // Before anything is held.
    let mut memory = [0_u64; 3];
    ok!(nvml, nvmlDeviceGetMemoryInfo(device => u64, &raw mut memory => *mut [u64; 3]));
    assert_eq!(memory.map(|bytes| bytes / MIB), [2048, 2048, 0]);
    assert_eq!(list(&nvml, device, 16).1.len(), 0);

    ok!(cuda, cuInit(0 => u32));
    let (mut context, mut total) = (0_u64, 0_u64);
    ok!(cuda, cuDeviceTotalMem_v2(&raw mut total => *mut u64, 1 => i32));
    assert_eq!(total, 2048 * MIB);
    // A card that the container was not given has no memory for it.
    assert_eq!(
        call!(cuda, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32)),
        rig::OUT_OF_MEMORY
    );
    ok!(cuda, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 1 => i32));
    cuda.allocate(700 * MIB).unwrap();
    assert_eq!(cuda.memory(), (1048 << 20, 2048 << 20));
    ok!(nvml, nvmlDeviceGetMemoryInfo(device => u64, &raw mut memory => *mut [u64; 3]));
    assert_eq!(memory.map(|bytes| bytes / MIB), [2048, 1048, 1000]);
    let mut second = [0_u64; 5];
    second[0] = 0x28 | 2 << 24;
    ok!(nvml, nvmlDeviceGetMemoryInfo_v2(device => u64, &raw mut second => *mut [u64; 5]));
    assert_eq!(
        second[1..].iter().map(|bytes| bytes / MIB).collect::<Vec<_>>(),
        [2048, 0, 1048, 1000]
    );
    let (code, seen) = list(&nvml, device, 16);
    assert_eq!((code, seen.len()), (0, 1));
    assert_eq!((seen[0].pid, seen[0].memory / MIB), (std::process::id(), 1000));
    assert_eq!(list(&nvml, device, 0).0, 7, "no room");
    let mut rates = [0_u32; 2];
    ok!(nvml, nvmlDeviceGetUtilizationRates(device => u64, &raw mut rates => *mut [u32; 2]));
    assert!(rates[0] <= 100);
}
