//! Captures of streams: what we ask of the driver for our own measuring must not end them.

use machine::{Clock, Description};

use crate::rig::{self, Driver, MIB, Rig, Share};

const GLOBAL: u32 = 0;
const INVALIDATED: u32 = 901;
const UNSUPPORTED: u32 = 900;

/// In a container with half of a card.
fn limited(test: &str, body: impl FnOnce(&Driver)) {
    if rig::role().is_some() {
        return body(&Driver::load());
    }
    let share = Share { device: 0, memory: 2048 * MIB, cores: 50, burst: 50 };
    let real = |description: &mut Description| description.clock = Clock::Real;
    Rig::with("dgx-a100", "550.163.01", &[share], real).run(test, "body");
}

#[test]
fn launches_beside_a_capture_leave_it_whole() {
    limited("launches_beside_a_capture_leave_it_whole", |driver| {
        driver.context();
        let function = driver.function("busy_100us");
        let (captured, other) = (driver.stream(1), driver.stream(1));
        for _ in 0..3 {
            // Work that is not measured yet when the capture begins.
            assert_eq!(driver.launch(function, 64, other), 0);
            ok!(driver, cuStreamBeginCapture_v2(captured => u64, GLOBAL => u32));
            for _ in 0..200 {
                assert_eq!(driver.launch(function, 64, other), 0);
            }
            assert_eq!(driver.launch(function, 64, captured), 0);
            let mut graph = 0_u64;
            ok!(driver, cuStreamEndCapture(captured => u64, &raw mut graph => *mut u64));
            ok!(driver, cuGraphDestroy(graph => u64));
            ok!(driver, cuCtxSynchronize());
        }
    });
}

#[test]
fn what_a_capture_forbids_to_the_program_stays_forbidden() {
    limited("what_a_capture_forbids_to_the_program_stays_forbidden", |driver| {
        driver.context();
        let function = driver.function("busy_100us");
        let (captured, mut event, mut graph) = (driver.stream(1), 0_u64, 0_u64);
        ok!(driver, cuEventCreate(&raw mut event => *mut u64, 0 => u32));
        ok!(driver, cuStreamBeginCapture_v2(captured => u64, GLOBAL => u32));
        assert_eq!(driver.launch(function, 64, captured), 0);
        assert_eq!(call!(driver, cuEventQuery(event => u64)), UNSUPPORTED);
        let ended = call!(driver, cuStreamEndCapture(captured => u64, &raw mut graph => *mut u64));
        assert_eq!(ended, INVALIDATED);
        // After it everything is as before.
        ok!(driver, cuEventQuery(event => u64));
        assert_eq!(driver.launch(function, 64, captured), 0);
        ok!(driver, cuStreamSynchronize(captured => u64));
        let mut mode = 1_u32;
        ok!(driver, cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut u32));
        assert_eq!(mode, GLOBAL, "the thread's own mode was given back");
    });
}
