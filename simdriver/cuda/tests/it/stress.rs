//! Many processes on one card, a third of them killed at random: nothing is left behind.

use std::ffi::c_void;

use crate::driver::{Driver, Rig, killed, role};
use machine::{Choices, DeviceId};

const TEST: &str = "a_third_of_the_processes_killed_leaves_nothing_behind";

/// A sequence that depends on its seed alone.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// From the environment, for the long version.
fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn a_third_of_the_processes_killed_leaves_nothing_behind() {
    if let Some(role) = role() {
        return work(role.parse().unwrap());
    }
    let rig = Rig::with("dgx-a100", &Choices::default(), |_| {});
    let card = DeviceId::new(0).unwrap();
    let before = rig.machine().memory(card).unwrap();
    let processes = number("NANOGPU_CUDA_PROCESSES", 9);
    let children: Vec<_> =
        (0..processes).map(|seed| (seed, rig.start(TEST, &seed.to_string()))).collect();
    for (seed, mut child) in children {
        let status = child.wait().unwrap();
        // One that is to be killed may be done before.
        assert!(status.success() || (seed.is_multiple_of(3) && killed(status)), "{seed}: {status}");
    }
    assert_eq!(rig.machine().memory(card).unwrap(), before);
    assert_eq!(
        rig.machine().running().unwrap().iter().filter(|running| !running.holds.is_empty()).count(),
        0
    );
}

/// Allocates, copies, launches and frees; checks that its own bytes are its own.
fn work(seed: u64) {
    let mut random = Random(seed + 1);
    let rounds = number("NANOGPU_CUDA_ROUNDS", 300);
    if seed.is_multiple_of(3) {
        let patience = random.next(rounds * 40);
        std::thread::spawn(move || {
            for _ in 0..patience {
                std::thread::yield_now();
            }
            // SAFETY: ends this process, which is what is wanted.
            unsafe { libc::raise(libc::SIGKILL) };
        });
    }
    let driver = Driver::load();
    driver.context();
    let streams = [0, driver.stream(0), driver.stream(1)];
    let kernels = ["busy_1us", "busy_20us_sms_4", "model"].map(|name| driver.function(name));
    let mut held: Vec<(u64, usize, u8)> = Vec::new();
    for round in 0..rounds {
        let stream = streams[usize::try_from(random.next(3)).unwrap()];
        match random.next(6) {
            0 | 1 => {
                let most = 1 << random.next(23);
                let size = usize::try_from(1 + random.next(most)).unwrap();
                let byte = u8::try_from(round % 251).unwrap();
                let Ok(address) = driver.allocate(size) else { continue };
                ok!(driver, cuMemsetD8Async(address => u64, byte => u8, size => usize, stream => u64));
                held.push((address, size, byte));
            }
            2 if !held.is_empty() => {
                let (address, size, byte) =
                    held.swap_remove(usize::try_from(random.next(held.len() as u64)).unwrap());
                ok!(driver, cuCtxSynchronize());
                let mut bytes = vec![0_u8; size.min(64)];
                let at = address + (size - bytes.len()) as u64;
                ok!(driver, cuMemcpyDtoH_v2(bytes.as_mut_ptr() => *mut u8, at => u64, bytes.len() => usize));
                assert!(bytes.iter().all(|other| *other == byte), "{byte} became {bytes:?}");
                ok!(driver, cuMemFree_v2(address => u64));
            }
            3 => {
                let mut address = 0_u64;
                ok!(driver, cuMemAllocAsync(&raw mut address => *mut u64, 4096 => usize, stream => u64));
                ok!(driver, cuMemFreeAsync(address => u64, stream => u64));
            }
            4 if random.next(20) == 0 => ok!(driver, cuStreamSynchronize(stream => u64)),
            _ => {
                let kernel = kernels[usize::try_from(random.next(3)).unwrap()];
                assert_eq!(driver.launch(kernel, 4, stream), 0);
            }
        }
    }
    ok!(driver, cuCtxSynchronize());
    let mut word = 0_u32;
    let address = driver.allocate(4).unwrap();
    ok!(driver, cuMemcpyDtoH_v2((&raw mut word).cast() => *mut c_void, address => u64, 4 => usize));
}
