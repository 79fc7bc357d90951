//! A Rust client that nobody here wrote, on the library as it is loaded by any program.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use machine::{
    Choices, Counter, Description, DeviceId, Fault, Machine, Memory, Switch, VARIABLE, Work,
};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;

const MIB: u64 = 1 << 20;

/// The library asks the environment for its machine, and there is one environment.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Bench {
    machine: &'static Machine,
    nvml: Option<Nvml>,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(profile: &str, choices: &Choices) -> Self {
        Self::changed(profile, choices, |_| ())
    }

    fn changed(profile: &str, choices: &Choices, change: impl FnOnce(&mut Description)) -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let mut description = Description::from_profile(profile, choices).unwrap();
        change(&mut description);
        let machine = Machine::create(&folder.path().join("m"), &description).unwrap();
        // SAFETY: all who read or change the environment hold the turn.
        unsafe { std::env::set_var(VARIABLE, folder.path().join("m")) };
        Self { machine, nvml: None, _folder: folder, _turn: turn }
    }

    fn nvml(&mut self) -> &Nvml {
        if self.nvml.is_none() {
            self.nvml = Some(start().unwrap());
        }
        self.nvml.as_ref().unwrap()
    }
}

fn start() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library().as_os_str()).init()
}

/// The library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libnvml.so")
}

fn card(place: usize) -> DeviceId {
    DeviceId::new(place).unwrap()
}

fn dgx() -> Bench {
    Bench::new("dgx-a100", &Choices::default())
}

#[test]
fn a_card_says_who_it_is() {
    let mut bench = dgx();
    let machine = bench.machine;
    let nvml = bench.nvml();
    assert_eq!(nvml.sys_driver_version().unwrap(), "550.163.01");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "12.550.163.01");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12040);
    assert_eq!(nvml.device_count().unwrap(), 8);
    let device = nvml.device_by_index(3).unwrap();
    let described = &machine.description().cards[3];
    assert_eq!(device.name().unwrap(), "NVIDIA A100-SXM4-40GB");
    assert_eq!(device.uuid().unwrap(), described.uuid);
    assert_eq!(device.index().unwrap(), 3);
    assert_eq!(device.minor_number().unwrap(), 3);
    assert_eq!(device.serial().unwrap(), described.serial);
    assert_eq!(device.pci_info().unwrap().bus_id, "00000000:04:00.0");
    assert_eq!(device.cuda_compute_capability().unwrap().major, 8);
    assert_eq!(device.num_cores().unwrap(), 108 * 64);
    assert_eq!(device.memory_bus_width().unwrap(), 5120);
    assert_eq!(nvml.device_by_uuid(described.uuid.as_str()).unwrap().index().unwrap(), 3);
    assert_eq!(nvml.device_by_pci_bus_id("0000:04:00.0").unwrap().index().unwrap(), 3);
    assert!(matches!(nvml.device_by_index(8), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
}

#[test]
fn memory_and_processes_are_those_of_all_processes() {
    let mut bench = dgx();
    let process = bench.machine.another_process().unwrap();
    process.open_context(card(1)).unwrap();
    process.reserve(card(1), Memory::Allocation, 512 * MIB).unwrap();
    let device = bench.nvml().device_by_index(1).unwrap();
    let memory = device.memory_info().unwrap();
    assert_eq!((memory.total, memory.used), (40960 * MIB, 812 * MIB));
    assert_eq!(memory.free, memory.total - memory.reserved - memory.used);
    let running = device.running_compute_processes().unwrap();
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].pid, std::process::id());
    assert_eq!(running[0].used_gpu_memory, UsedGpuMemory::Used(812 * MIB));
    assert_eq!(running[0].gpu_instance_id, None);
    assert_eq!(device.running_graphics_processes().unwrap(), []);
    let other = bench.nvml().device_by_index(0).unwrap();
    assert_eq!(other.running_compute_processes_count().unwrap(), 0);
}

#[test]
fn load_heats_and_is_told_apart_by_process() {
    let choices = Choices { clock: machine::Clock::Virtual, ..Choices::default() };
    let mut bench = Bench::new("dgx-a100", &choices);
    let machine = bench.machine;
    let process = machine.another_process().unwrap();
    let context = process.open_context(card(0)).unwrap();
    let device = bench.nvml().device_by_index(0).unwrap();
    machine.advance(500_000_000).unwrap();
    assert_eq!(device.utilization_rates().unwrap().gpu, 0);
    assert!(matches!(device.process_utilization_stats(None), Err(NvmlError::NotFound)));
    let cold = device.temperature(TemperatureSensor::Gpu).unwrap();
    let idle = device.power_usage().unwrap();
    // A quarter of each of four periods of a sixth of a second.
    for _ in 0..4 {
        let work = Work::Kernel { multiprocessors: 108, nanoseconds: machine::BUCKET / 4 };
        process.submit(context, 0, work).unwrap();
        machine.advance(machine::BUCKET).unwrap();
    }
    assert_eq!(device.utilization_rates().unwrap().gpu, 25);
    let stats = device.process_utilization_stats(None).unwrap();
    assert_eq!((stats[0].pid, stats[0].sm_util), (std::process::id(), 25));
    assert!(device.temperature(TemperatureSensor::Gpu).unwrap() > cold);
    assert!(device.power_usage().unwrap() > idle);
    assert_eq!(device.clock_info(Clock::SM).unwrap(), 1410);
}

#[test]
fn links_are_those_of_the_profile() {
    let mut bench = dgx();
    let nvml = bench.nvml();
    let device = |index| nvml.device_by_index(index).unwrap();
    let level = device(0).topology_common_ancestor(device(1)).unwrap();
    assert_eq!(level, TopologyLevel::Node);
    let level = device(0).topology_common_ancestor(device(2)).unwrap();
    assert_eq!(level, TopologyLevel::System);
    let first = device(0);
    let near = first.topology_nearest_gpus(TopologyLevel::Node).unwrap();
    assert_eq!(near.iter().map(|it| it.index().unwrap()).collect::<Vec<_>>(), [1]);
    let link = first.link_wrapper_for(11);
    assert!(link.is_active().unwrap());
    assert!(!first.link_wrapper_for(12).is_active().unwrap());
    // CPUs 48-63 and 176-191.
    let cpus = first.cpu_affinity(4).unwrap();
    assert_eq!(cpus, [0xffff << 48, 0, 0xffff << 48, 0]);
    drop(bench);
    let mut bench = Bench::new("bridge-x4", &Choices::default());
    let nvml = bench.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let remote = device.link_wrapper_for(1).remote_pci_info().unwrap();
    assert_eq!(remote.bus_id, nvml.device_by_index(3).unwrap().pci_info().unwrap().bus_id);
}

#[test]
fn a_process_sees_the_cards_whose_device_nodes_it_has() {
    let nodes = tempfile::tempdir().unwrap();
    for name in ["nvidiactl", "nvidia5", "nvidia2"] {
        std::fs::write(nodes.path().join(name), "").unwrap();
    }
    let root = nodes.path().to_owned();
    let mut bench =
        Bench::changed("dgx-a100", &Choices::default(), |it| it.dev_root = root.clone());
    let nvml = bench.nvml();
    assert_eq!(nvml.device_count().unwrap(), 2);
    let minors: Vec<u32> =
        (0..2).map(|index| nvml.device_by_index(index).unwrap().minor_number().unwrap()).collect();
    assert_eq!(minors, [2, 5]);
    let hidden = bench.machine.description().cards[0].uuid.clone();
    assert!(matches!(bench.nvml().device_by_uuid(hidden), Err(NvmlError::NotFound)));
}

#[test]
fn xids_reach_who_waits_for_them() {
    let mut bench = dgx();
    let machine = bench.machine;
    let nvml = bench.nvml();
    let set = nvml.create_event_set().unwrap();
    let device = nvml.device_by_index(2).unwrap();
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    let nothing = set.wait(1);
    assert!(matches!(nothing, Err(NvmlError::Timeout)));
    machine.inject(Fault::Xid(card(1), 13)).unwrap();
    let later = std::thread::spawn(move || {
        machine.inject(Fault::Xid(card(2), 31)).unwrap();
    });
    let EventData { device, event_data, .. } = set.wait(60_000).unwrap();
    assert_eq!(device.index().unwrap(), 2);
    assert_eq!(event_data, Some(XidError::Value(31)));
    later.join().unwrap();
    for xid in [13, 31, 43, 45, 48, 62, 63, 64, 74, 79, 92, 94, 95, 109, 119] {
        machine.inject(Fault::Xid(card(2), xid)).unwrap();
        let event = set.wait(60_000).unwrap();
        assert_eq!(event.event_data, Some(XidError::Value(xid)));
    }
}

#[test]
fn a_lost_card_fails_every_call_and_comes_back() {
    let mut bench = dgx();
    let machine = bench.machine;
    let device = bench.nvml().device_by_index(4).unwrap();
    machine.inject(Fault::Lose(card(4))).unwrap();
    assert!(matches!(device.name(), Err(NvmlError::GpuLost)));
    assert!(matches!(device.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(device.utilization_rates(), Err(NvmlError::GpuLost)));
    assert!(matches!(bench.nvml().device_by_index(4), Err(NvmlError::GpuLost)));
    assert_eq!(bench.nvml().device_count().unwrap(), 8);
    machine.inject(Fault::Return(card(4))).unwrap();
    assert_eq!(bench.nvml().device_by_index(4).unwrap().index().unwrap(), 4);
}

#[test]
fn ecc_errors_are_counted() {
    let mut bench = dgx();
    let machine = bench.machine;
    machine.inject(Fault::Count(card(0), Counter::UncorrectedVolatile, 2)).unwrap();
    machine.inject(Fault::Count(card(0), Counter::RemappedUncorrected, 1)).unwrap();
    let device = bench.nvml().device_by_index(0).unwrap();
    assert!(device.is_ecc_enabled().unwrap().currently_enabled);
    let total = |kind, since| device.total_ecc_errors(kind, since).unwrap();
    assert_eq!(total(MemoryError::Uncorrected, EccCounter::Volatile), 2);
    assert_eq!(total(MemoryError::Uncorrected, EccCounter::Aggregate), 2);
    assert_eq!(total(MemoryError::Corrected, EccCounter::Volatile), 0);
}

#[test]
fn without_a_driver_nothing_starts() {
    let bench = dgx();
    bench.machine.inject(Fault::NoDriver(Switch::On)).unwrap();
    assert!(matches!(start(), Err(NvmlError::DriverNotLoaded)));
    bench.machine.inject(Fault::NoDriver(Switch::Off)).unwrap();
    bench.machine.inject(Fault::Mismatch(Switch::On)).unwrap();
    assert!(matches!(start(), Err(NvmlError::LibRmVersionMismatch)));
}

#[test]
fn calls_hang_until_the_fault_is_lifted() {
    let mut bench = dgx();
    let machine = bench.machine;
    let device = bench.nvml().device_by_index(0).unwrap();
    machine.inject(Fault::NvmlHang(Switch::On)).unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| device.name().unwrap());
        // However long it is given, it is not done before the fault is lifted.
        (0..10_000).for_each(|_| std::thread::yield_now());
        assert!(!call.is_finished());
        machine.inject(Fault::NvmlHang(Switch::Off)).unwrap();
        assert_eq!(call.join().unwrap(), "NVIDIA A100-SXM4-40GB");
    });
}
