//! Several processes on one machine: shares, handles, death, forks and faults.

use std::ffi::c_void;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::driver::{Driver, Rig, killed, role};
use machine::{Choices, Clock, DeviceId, Fault, Switch, VARIABLE};

const MIB: usize = 1 << 20;

/// A process in a role that answers line by line.
struct Peer {
    child: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Peer {
    fn start(rig: &Rig, test: &str, role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--nocapture", "--test-threads=1"])
            .env(VARIABLE, rig.path())
            .env("CUDA_TEST_ROLE", role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next line it says to us.
    fn hear(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the peer says something").unwrap();
            if let Some(said) = line.strip_prefix("say ") {
                return said.to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

fn say(line: &str) {
    println!("\nsay {line}");
}

fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

fn bytes(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

fn text(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(half.into(), 16).unwrap();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[test]
fn two_processes_share_a_card_and_one_is_killed() {
    const TEST: &str = "two_processes_share_a_card_and_one_is_killed";
    if role().is_none() {
        let rig = Rig::new("t4x4", "550.163.01");
        let card = DeviceId::new(0).unwrap();
        let free = || rig.machine().memory(card).unwrap().free;
        let before = free();
        let mut peers = [Peer::start(&rig, TEST, "holder"), Peer::start(&rig, TEST, "holder")];
        for peer in &mut peers {
            assert_eq!(peer.hear(), "ready");
        }
        // Each has a context of 300 MiB, a module of 2 and an allocation of 1,000.
        assert_eq!(before - free(), 2 * (1302 << 20));
        let [mut one, mut two] = peers;
        one.child.kill().unwrap();
        assert!(killed(one.child.wait().unwrap()));
        assert_eq!(before - free(), 1302 << 20);
        two.tell("go");
        assert_eq!(two.hear(), "done");
        assert!(two.child.wait().unwrap().success());
        assert_eq!(free(), before);
        return;
    }
    let driver = Driver::load();
    driver.context();
    driver.allocate(1000 * MIB).unwrap();
    let function = driver.function("sleep_3600s");
    assert_eq!(driver.launch(function, 1, driver.stream(1)), 0);
    say("ready");
    listen();
    say("done");
}

#[test]
fn memory_and_events_go_from_process_to_process() {
    const TEST: &str = "memory_and_events_go_from_process_to_process";
    match role().as_deref() {
        None => {
            let rig = Rig::new("t4x4", "550.163.01");
            let mut owner = Peer::start(&rig, TEST, "owner");
            let (memory, event) = (owner.hear(), owner.hear());
            let mut user = Peer::start(&rig, TEST, "user");
            user.tell(&memory);
            user.tell(&event);
            assert_eq!(user.hear(), "read 41");
            owner.tell("look");
            assert_eq!(owner.hear(), "read 42");
            for mut peer in [owner, user] {
                peer.tell("end");
                assert!(peer.child.wait().unwrap().success());
            }
            let files = || -> std::collections::BTreeSet<_> {
                let folder = std::fs::read_dir(rig.path().join("shared")).unwrap();
                folder.map(|file| file.unwrap().file_name()).collect()
            };
            let left = files();
            assert_eq!(left.len(), 2, "the files of processes that ended lie there");
            // The next who exports something clears them away.
            let mut next = Peer::start(&rig, TEST, "owner");
            next.hear();
            assert!(files().is_disjoint(&left));
            next.child.kill().unwrap();
            next.child.wait().unwrap();
        }
        Some("owner") => {
            let driver = Driver::load();
            driver.context();
            let address = driver.allocate(1000).unwrap();
            let spare = driver.allocate(1000).unwrap();
            ok!(driver, cuMemsetD32_v2(spare => u64, 41 => u32, 1 => usize));
            let mut handle = [0_u8; 64];
            ok!(driver, cuIpcGetMemHandle(handle.as_mut_ptr() => *mut u8, spare => u64));
            say(&text(&handle));
            let event = driver.event(6);
            ok!(driver, cuIpcGetEventHandle(handle.as_mut_ptr() => *mut u8, event => u64));
            let stream = driver.stream(1);
            let function = driver.function("sleep_2ms");
            assert_eq!(driver.launch(function, 1, stream), 0);
            driver.record(event, stream);
            say(&text(&handle));
            listen();
            let mut value = 0_u32;
            ok!(driver, cuMemcpyDtoH_v2((&raw mut value).cast() => *mut c_void, spare => u64, 4 => usize));
            say(&format!("read {value}"));
            ok!(driver, cuMemFree_v2(address => u64));
            listen();
        }
        Some(_) => {
            #[repr(C)]
            #[derive(Clone, Copy)]
            struct Handle([u8; 64]);
            let driver = Driver::load();
            driver.context();
            let before = driver.memory().0;
            let (memory, event) = (bytes(&listen()), bytes(&listen()));
            let (mut address, mut opened) = (0_u64, 0_u64);
            ok!(driver, cuIpcOpenMemHandle_v2(&raw mut address => *mut u64, Handle(memory.try_into().unwrap()) => Handle, 1 => u32));
            ok!(driver, cuIpcOpenEventHandle(&raw mut opened => *mut u64, Handle(event.try_into().unwrap()) => Handle));
            assert_eq!(driver.memory().0, before, "who exported it pays");
            ok!(driver, cuEventSynchronize(opened => u64));
            let mut value = 0_u32;
            ok!(driver, cuMemcpyDtoH_v2((&raw mut value).cast() => *mut c_void, address => u64, 4 => usize));
            ok!(driver, cuMemsetD32_v2(address => u64, 42 => u32, 1 => usize));
            say(&format!("read {value}"));
            listen();
            ok!(driver, cuIpcCloseMemHandle(address => u64));
            assert_eq!(call!(driver, cuIpcCloseMemHandle(address => u64)), 1);
        }
    }
}

#[test]
fn a_fork_starts_anew() {
    const TEST: &str = "a_fork_starts_anew";
    crate::driver::on("t4x4", "550.163.01", TEST, |driver| {
        driver.context();
        let address = driver.allocate(MIB).unwrap();
        let before = driver.memory().0;
        // SAFETY: the child only calls the driver and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut count = 0;
            let mut answers = vec![call!(driver, cuDeviceGetCount(&raw mut count => *mut i32))];
            answers.push(call!(driver, cuMemFree_v2(address => u64)));
            answers.push(call!(driver, cuInit(0 => u32)));
            answers.push(call!(driver, cuDeviceGetCount(&raw mut count => *mut i32)));
            answers.push(call!(driver, cuCtxSynchronize()));
            let mut context = 0;
            answers.push(
                call!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32)),
            );
            let right = answers == [3, 3, 0, 0, 201, 0] && count == 4;
            // SAFETY: leaves without running what belongs to the parent.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(driver.memory().0, before);
        ok!(driver, cuMemFree_v2(address => u64));
    });
}

#[test]
fn a_lost_card_answers_nothing_any_more() {
    const TEST: &str = "a_lost_card_answers_nothing_any_more";
    crate::driver::on("t4x4", "550.163.01", TEST, |driver| {
        driver.context();
        let machine = machine::Machine::find().unwrap();
        let card = DeviceId::new(0).unwrap();
        let stream = driver.stream(1);
        let function = driver.function("sleep_1s");
        assert_eq!(driver.launch(function, 1, stream), 0);
        machine.inject(Fault::Lose(card)).unwrap();
        assert_eq!(driver.allocate(MIB), Err(999));
        assert_eq!(driver.launch(function, 1, stream), 999);
        assert_eq!(call!(driver, cuStreamSynchronize(stream => u64)), 999);
        let mut context = 0;
        assert_eq!(
            call!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32)),
            999
        );
        ok!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 1 => i32));
        driver.allocate(MIB).unwrap();
        machine.inject(Fault::Return(card)).unwrap();
        // A context from before is lost for good.
        let mut first = 0;
        ok!(driver, cuDevicePrimaryCtxRetain(&raw mut first => *mut u64, 0 => i32));
        ok!(driver, cuCtxSetCurrent(first => u64));
        assert_eq!(driver.allocate(MIB), Err(999));
        ok!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32));
    });
}

#[test]
fn an_uncorrectable_error_ends_a_context_but_not_the_card() {
    const TEST: &str = "an_uncorrectable_error_ends_a_context_but_not_the_card";
    crate::driver::on("t4x4", "550.163.01", TEST, |driver| {
        driver.context();
        let before = driver.memory().0;
        let (machine, card) = (machine::Machine::find().unwrap(), DeviceId::new(0).unwrap());
        let stream = driver.stream(1);
        let function = driver.function("sleep_1s");
        assert_eq!(driver.launch(function, 1, stream), 0);
        machine.inject(Fault::Xid(card, 48)).unwrap();
        assert_eq!(call!(driver, cuStreamSynchronize(stream => u64)), 214);
        assert_eq!(driver.allocate(MIB), Err(214), "it stays");
        ok!(driver, cuDevicePrimaryCtxReset_v2(0 => i32));
        driver.context();
        assert_eq!(driver.memory().0, before);
        driver.allocate(MIB).unwrap();
    });
}

#[test]
fn a_card_can_be_made_to_run_out_of_memory() {
    const TEST: &str = "a_card_can_be_made_to_run_out_of_memory";
    crate::driver::on("t4x4", "550.163.01", TEST, |driver| {
        driver.context();
        let machine = machine::Machine::find().unwrap();
        let card = DeviceId::new(0).unwrap();
        machine.inject(Fault::OutOfMemory(card, Switch::On)).unwrap();
        assert_eq!(driver.allocate(MIB), Err(2));
        machine.inject(Fault::OutOfMemory(card, Switch::Off)).unwrap();
        driver.allocate(MIB).unwrap();
    });
}

#[test]
fn cards_are_chosen_by_number_and_uuid() {
    const TEST: &str = "cards_are_chosen_by_number_and_uuid";
    if let Some(role) = role() {
        let driver = Driver::load();
        let (cards, expected) = role.split_once('/').unwrap();
        // SAFETY: no other thread of this process reads the environment now.
        unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", cards) };
        let code = call!(driver, cuInit(0 => u32));
        let mut found = Vec::new();
        let mut count = 0;
        if code == 0 {
            ok!(driver, cuDeviceGetCount(&raw mut count => *mut i32));
        }
        for device in 0..count {
            let mut bus = [0_i8; 16];
            ok!(driver, cuDeviceGetPCIBusId(bus.as_mut_ptr() => *mut i8, 16 => i32, device => i32));
            let bus: String = bus
                .iter()
                .take_while(|byte| **byte != 0)
                .map(|byte| char::from(byte.cast_unsigned()))
                .collect();
            let machine = machine::Machine::find().unwrap();
            let place = machine
                .description()
                .cards
                .iter()
                .position(|card| card.bus.eq_ignore_ascii_case(&bus))
                .unwrap();
            found.push(place.to_string());
        }
        assert_eq!(found.join(","), expected);
        assert_eq!(code, if found.is_empty() { 100 } else { 0 });
        return;
    }
    let rig = Rig::new("t4x4", "550.163.01");
    let uuid = rig.machine().description().cards[2].uuid.clone();
    for role in [
        "2,0/2,0".to_owned(),
        "1,9,0/1".to_owned(),
        "-1/".to_owned(),
        format!("{}/2", &uuid[..12]),
        format!("{uuid},1/2,1"),
    ] {
        rig.run(TEST, &role);
    }
}

#[test]
fn processes_take_turns_and_the_truth_is_kept() {
    const TEST: &str = "processes_take_turns_and_the_truth_is_kept";
    if role().is_none() {
        let choices = Choices { clock: Clock::Virtual, ..Choices::default() };
        let rig = Rig::with("t4x4", &choices, |description| description.jitter_percent = 0);
        let mut peers: Vec<Peer> = (0..2).map(|_| Peer::start(&rig, TEST, "worker")).collect();
        for peer in &mut peers {
            assert_eq!(peer.hear(), "queued");
        }
        // Both have 20 ms of work for the whole card; after 20 ms each had its half.
        rig.machine().advance(20_000_000).unwrap();
        let busy: Vec<u64> = rig
            .machine()
            .usage()
            .unwrap()
            .iter()
            .map(|usage| usage.busy)
            .filter(|busy| *busy > 0)
            .collect();
        assert_eq!(busy, [10_000_000, 10_000_000]);
        for mut peer in peers {
            peer.tell("finish");
            assert_eq!(peer.hear(), "done");
            assert!(peer.child.wait().unwrap().success());
        }
        return;
    }
    let driver = Driver::load();
    driver.context();
    let function = driver.function("busy_1ms_sms_40");
    let stream = driver.stream(1);
    for _ in 0..20 {
        assert_eq!(driver.launch(function, 40, stream), 0);
    }
    say("queued");
    listen();
    ok!(driver, cuStreamSynchronize(stream => u64));
    say("done");
}

#[test]
fn shareable_handles_carry_memory_over_a_socket() {
    const TEST: &str = "shareable_handles_carry_memory_over_a_socket";
    crate::driver::on("t4x4", "550.163.01", TEST, |driver| {
        driver.context();
        let before = driver.memory().0;
        let shape = [1_u32, 1, 1, 0, 0, 0, 0, 0];
        let (mut handle, mut descriptor, mut imported) = (0_u64, -1_i32, 0_u64);
        ok!(driver, cuMemCreate(&raw mut handle => *mut u64, 2 * MIB => usize, shape.as_ptr() => *const u32, 0 => u64));
        ok!(driver, cuMemExportToShareableHandle(&raw mut descriptor => *mut i32, handle => u64, 1 => u32, 0 => u64));
        ok!(driver, cuMemImportFromShareableHandle(&raw mut imported => *mut u64, usize::try_from(descriptor).unwrap() => usize, 1 => u32));
        assert_eq!(before - driver.memory().0, 2 * MIB, "an import costs nothing");
        let mut base = 0_u64;
        ok!(driver, cuMemAddressReserve(&raw mut base => *mut u64, 4 * MIB => usize, 0 => usize, 0 => u64, 0 => u64));
        let access = [1_u32, 0, 3];
        for (index, handle) in [handle, imported].into_iter().enumerate() {
            let at = base + (index * 2 * MIB) as u64;
            ok!(driver, cuMemMap(at => u64, 2 * MIB => usize, 0 => usize, handle => u64, 0 => u64));
            ok!(driver, cuMemSetAccess(at => u64, 2 * MIB => usize, access.as_ptr() => *const u32, 1 => usize));
        }
        ok!(driver, cuMemsetD8_v2(base => u64, 5 => u8, 1 => usize));
        let mut byte = 0_u8;
        ok!(driver, cuMemcpyDtoH_v2(&raw mut byte => *mut u8, base + (2 * MIB) as u64 => u64, 1 => usize));
        assert_eq!(byte, 5);
        // A descriptor that is something else is refused.
        assert_eq!(
            call!(driver, cuMemImportFromShareableHandle(&raw mut imported => *mut u64, 0 => usize, 1 => u32)),
            1
        );
    });
}

#[test]
fn a_process_uses_one_slice_of_a_card_that_is_cut() {
    const TEST: &str = "a_process_uses_one_slice_of_a_card_that_is_cut";
    if let Some(role) = role() {
        // SAFETY: no other thread of this process reads the environment now.
        unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", role) };
        let driver = Driver::load();
        driver.context();
        let (mut count, mut name) = (0, [0_u8; 64]);
        ok!(driver, cuDeviceGetCount(&raw mut count => *mut i32));
        ok!(driver, cuDeviceGetName(name.as_mut_ptr().cast() => *mut i8, 64 => i32, 0 => i32));
        assert_eq!(count, 1);
        assert!(name.starts_with(b"NVIDIA A100-SXM4-40GB MIG 1g.5gb\0"));
        let mut multiprocessors = 0;
        ok!(driver, cuDeviceGetAttribute(&raw mut multiprocessors => *mut i32, 16 => u32, 0 => i32));
        assert_eq!(multiprocessors, 14);
        assert_eq!(driver.memory(), ((4864 - 300) * MIB, 4864 * MIB));
        assert_eq!(driver.allocate(4600 * MIB), Err(2));
        driver.allocate(4500 * MIB).unwrap();
        return;
    }
    let choices = Choices { mig: true, clock: Clock::Virtual, ..Choices::default() };
    let rig = Rig::with("dgx-a100", &choices, |_| {});
    let machine = rig.machine();
    let gpu = machine.create_gpu_instance(0, 19, None).unwrap();
    let slice = machine.create_compute_instance(&gpu, 0).unwrap();
    rig.run(TEST, &machine.mig_uuid(slice.device));
}
