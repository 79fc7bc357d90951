//! Streams, events and launches: what happens when, in the machine's own time.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::{Driver, Rig, on, role};
use machine::{Choices, Clock, Kernel};

const NOT_READY: u32 = 600;

fn close(measured: f32, expected: f32) {
    assert!(
        (measured - expected).abs() < 0.000_5 + expected * 1e-6,
        "{measured} ms, not {expected} ms"
    );
}

#[test]
fn events_tell_the_time_a_kernel_took() {
    on("t4x4", "550.163.01", "events_tell_the_time_a_kernel_took", |driver| {
        driver.context();
        let stream = driver.stream(1);
        for (name, blocks, expected) in [
            ("sleep_1ms", 1, 1.0),
            ("busy_250us_sms_20", 1000, 0.25),
            ("sleep_3s", 40, 3000.0),
            ("model", 40, 0.01),
            ("model", 641, 0.03),
        ] {
            let (start, end) = (driver.event(0), driver.event(0));
            let function = driver.function(name);
            driver.record(start, stream);
            assert_eq!(driver.launch(function, blocks, stream), 0);
            driver.record(end, stream);
            ok!(driver, cuEventSynchronize(end => u64));
            close(driver.elapsed(start, end), expected);
        }
    });
}

#[test]
fn a_launch_can_say_how_long_it_is() {
    on("t4x4", "550.163.01", "a_launch_can_say_how_long_it_is", |driver| {
        driver.context();
        let stream = driver.stream(1);
        let function = driver.function("anything");
        let (start, middle, end) = (driver.event(0), driver.event(0), driver.event(0));
        driver.record(start, stream);
        // CUlaunchConfig, with the attribute 0x4e47: nanoseconds, multiprocessors.
        let attribute: [u64; 9] = [0x4e47, 7_000_000, 10, 0, 0, 0, 0, 0, 0];
        let one = 1 | 1 << 32;
        let shape: [u64; 7] = [one, one, one, 0, stream, attribute.as_ptr() as u64, 1];
        ok!(driver, cuLaunchKernelEx(shape.as_ptr().cast() => *const c_void, function => u64,
            std::ptr::null() => *const c_void, std::ptr::null() => *const c_void));
        driver.record(middle, stream);
        let length = [2_000_000_u64, 0];
        let extra = [0x4e47_usize, length.as_ptr() as usize, 0];
        ok!(driver, cuLaunchKernel(function => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32, stream => u64,
            std::ptr::null() => *const c_void, extra.as_ptr().cast() => *const c_void));
        driver.record(end, stream);
        ok!(driver, cuStreamSynchronize(stream => u64));
        close(driver.elapsed(start, middle), 7.0);
        close(driver.elapsed(middle, end), 2.0);
    });
}

#[test]
fn the_machine_scripts_kernels_by_name() {
    const TEST: &str = "the_machine_scripts_kernels_by_name";
    if role().is_none() {
        let choices = Choices { clock: Clock::Virtual, ..Choices::default() };
        Rig::with("t4x4", &choices, |description| {
            description.kernels.insert(
                "sgemm".into(),
                Kernel { nanoseconds: 4_000_000, multiprocessors: Some(40) },
            );
        })
        .run(TEST, "body");
        return;
    }
    let driver = Driver::load();
    driver.context();
    let (start, end) = (driver.event(0), driver.event(0));
    let function = driver.function("sgemm");
    driver.record(start, 0);
    assert_eq!(driver.launch(function, 1, 0), 0);
    driver.record(end, 0);
    ok!(driver, cuCtxSynchronize());
    close(driver.elapsed(start, end), 4.0);
}

#[test]
fn kernels_of_two_streams_share_the_card() {
    on("t4x4", "550.163.01", "kernels_of_two_streams_share_the_card", |driver| {
        driver.context();
        let (one, two) = (driver.stream(1), driver.stream(1));
        let time = |name: &str| {
            let function = driver.function(name);
            let (start, ends) = (driver.event(0), [driver.event(0), driver.event(0)]);
            driver.record(start, one);
            for (stream, end) in [one, two].into_iter().zip(ends) {
                assert_eq!(driver.launch(function, 1000, stream), 0);
                driver.record(end, stream);
            }
            ok!(driver, cuCtxSynchronize());
            ends.map(|end| driver.elapsed(start, end))
        };
        // Two halves of a T4's 40 multiprocessors run side by side; two wholes one after the other.
        let [first, second] = time("busy_10ms_sms_20");
        close(first, 10.0);
        close(second, 10.0);
        let [first, second] = time("busy_10ms_sms_40");
        close(first.max(second), 20.0);
    });
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    on("t4x4", "550.163.01", "a_stream_waits_for_an_event_of_another", |driver| {
        driver.context();
        let (one, two) = (driver.stream(1), driver.stream(1));
        let (start, middle, end) = (driver.event(0), driver.event(0), driver.event(0));
        let function = driver.function("sleep_2ms");
        driver.record(start, one);
        assert_eq!(driver.launch(function, 1, one), 0);
        driver.record(middle, one);
        ok!(driver, cuStreamWaitEvent(two => u64, middle => u64, 0 => u32));
        assert_eq!(driver.launch(function, 1, two), 0);
        driver.record(end, two);
        assert_eq!(call!(driver, cuEventQuery(end => u64)), NOT_READY);
        assert_eq!(call!(driver, cuStreamQuery(two => u64)), NOT_READY);
        ok!(driver, cuEventSynchronize(end => u64));
        ok!(driver, cuStreamQuery(two => u64));
        close(driver.elapsed(start, end), 4.0);
    });
}

#[test]
fn the_legacy_stream_keeps_in_step_with_blocking_streams_only() {
    on(
        "t4x4",
        "550.163.01",
        "the_legacy_stream_keeps_in_step_with_blocking_streams_only",
        |driver| {
            driver.context();
            let (blocking, free) = (driver.stream(0), driver.stream(1));
            let function = driver.function("busy_2ms_sms_1");
            let events: Vec<u64> = (0..4).map(|_| driver.event(0)).collect();
            driver.record(events[0], blocking);
            assert_eq!(driver.launch(function, 1, blocking), 0);
            assert_eq!(driver.launch(function, 1, 0), 0);
            driver.record(events[1], 0);
            assert_eq!(driver.launch(function, 1, free), 0);
            driver.record(events[2], free);
            assert_eq!(driver.launch(function, 1, blocking), 0);
            driver.record(events[3], blocking);
            ok!(driver, cuCtxSynchronize());
            close(driver.elapsed(events[0], events[1]), 4.0);
            close(driver.elapsed(events[0], events[2]), 2.0);
            close(driver.elapsed(events[0], events[3]), 6.0);
        },
    );
}

#[test]
fn own_streams_of_threads_run_side_by_side() {
    on("t4x4", "550.163.01", "own_streams_of_threads_run_side_by_side", |driver| {
        let context = driver.context();
        let function = driver.function("busy_2ms_sms_1");
        let start = driver.event(0);
        ok!(driver, cuEventRecord_ptsz(start => u64, 0 => u64));
        let launch = |event: u64| {
            ok!(driver, cuCtxSetCurrent(context => u64));
            ok!(driver, cuLaunchKernel_ptsz(function => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64,
                std::ptr::null() => *const c_void, std::ptr::null() => *const c_void));
            ok!(driver, cuEventRecord_ptsz(event => u64, 0 => u64));
        };
        let events = [driver.event(0), driver.event(0)];
        std::thread::scope(|scope| {
            for event in events {
                let launch = &launch;
                // Both are queued before the clock moves: only who waits moves it.
                scope.spawn(move || launch(event)).join().unwrap();
            }
        });
        ok!(driver, cuCtxSynchronize());
        for event in events {
            close(driver.elapsed(start, event), 2.0);
        }
    });
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(data: *mut c_void) {
    CALLS.fetch_add(data as u32, Ordering::SeqCst);
}

extern "C" fn count_old(_: u64, status: u32, data: *mut c_void) {
    CALLS.fetch_add(data as u32 + status, Ordering::SeqCst);
}

#[test]
fn functions_of_the_host_are_called_in_order() {
    on("t4x4", "550.163.01", "functions_of_the_host_are_called_in_order", |driver| {
        driver.context();
        let stream = driver.stream(1);
        let function = driver.function("sleep_1ms");
        assert_eq!(driver.launch(function, 1, stream), 0);
        let count: extern "C" fn(*mut c_void) = count;
        let count_old: extern "C" fn(u64, u32, *mut c_void) = count_old;
        ok!(driver, cuLaunchHostFunc(stream => u64, count => extern "C" fn(*mut c_void), 2 as *mut c_void => *mut c_void));
        let pinned = {
            let mut address = 0_u64;
            ok!(driver, cuMemHostAlloc(&raw mut address => *mut u64, 4 => usize, 0 => u32));
            address
        };
        let device = driver.allocate(4).unwrap();
        ok!(driver, cuMemsetD32Async(device => u64, 77 => u32, 1 => usize, stream => u64));
        ok!(driver, cuMemcpyDtoHAsync_v2(pinned => u64, device => u64, 4 => usize, stream => u64));
        ok!(driver, cuStreamAddCallback(stream => u64, count_old => extern "C" fn(u64, u32, *mut c_void), 10 as *mut c_void => *mut c_void, 0 => u32));
        ok!(driver, cuStreamSynchronize(stream => u64));
        assert_eq!(CALLS.load(Ordering::SeqCst), 12);
        // SAFETY: pinned memory that was copied to.
        assert_eq!(unsafe { *(pinned as *const u32) }, 77);
    });
}

#[test]
fn words_are_waited_for_and_written() {
    on("t4x4", "550.163.01", "words_are_waited_for_and_written", |driver| {
        driver.context();
        let (one, two) = (driver.stream(1), driver.stream(1));
        let word = driver.allocate(8).unwrap();
        ok!(driver, cuMemsetD32_v2(word => u64, 0 => u32, 2 => usize));
        ok!(driver, cuStreamWaitValue32_v2(one => u64, word => u64, 5 => u32, 0 => u32));
        ok!(driver, cuStreamWriteValue32_v2(one => u64, word + 4 => u64, 9 => u32, 0 => u32));
        assert_eq!(call!(driver, cuStreamQuery(one => u64)), NOT_READY);
        ok!(driver, cuStreamWriteValue32_v2(two => u64, word => u64, 5 => u32, 0 => u32));
        ok!(driver, cuStreamSynchronize(one => u64));
        let mut words = [0_u32; 2];
        ok!(driver, cuMemcpyDtoH_v2(words.as_mut_ptr() => *mut u32, word => u64, 8 => usize));
        assert_eq!(words, [5, 9]);
    });
}

#[test]
fn copies_take_the_time_of_their_bus() {
    on("t4x4", "550.163.01", "copies_take_the_time_of_their_bus", |driver| {
        driver.context();
        let stream = driver.stream(1);
        let mut host = 0_u64;
        let size = 12_000_000;
        ok!(driver, cuMemHostAlloc(&raw mut host => *mut u64, size => usize, 0 => u32));
        let device = driver.allocate(size).unwrap();
        let (start, end) = (driver.event(0), driver.event(0));
        driver.record(start, stream);
        ok!(driver, cuMemcpyHtoDAsync_v2(device => u64, host => u64, size => usize, stream => u64));
        driver.record(end, stream);
        ok!(driver, cuStreamSynchronize(stream => u64));
        // 12 GB/s over PCIe 3, and a microsecond to start.
        close(driver.elapsed(start, end), 1.001);
    });
}

#[test]
fn events_and_the_machine_tell_the_same_time() {
    on("t4x4", "550.163.01", "events_and_the_machine_tell_the_same_time", |driver| {
        driver.context();
        let stream = driver.stream(1);
        let (start, end) = (driver.event(0), driver.event(0));
        let lengths = [1_u32, 17, 250, 999, 3000, 12_345];
        driver.record(start, stream);
        for length in lengths {
            let function = driver.function(&format!("busy_{length}us_sms_10"));
            assert_eq!(driver.launch(function, 100, stream), 0);
        }
        driver.record(end, stream);
        ok!(driver, cuStreamSynchronize(stream => u64));
        let sum = u64::from(lengths.iter().sum::<u32>()) * 1000;
        let usage = machine::Machine::find().unwrap().usage().unwrap();
        let mine = usage.iter().find(|usage| usage.busy > 0).unwrap();
        assert_eq!((mine.busy, mine.sm_time), (sum, sum * 10));
        close(driver.elapsed(start, end), 16.612);
    });
}

#[test]
fn a_launch_that_cannot_be_is_refused() {
    on("t4x4", "550.163.01", "a_launch_that_cannot_be_is_refused", |driver| {
        driver.context();
        let function = driver.function("f");
        let launch = |grid: u32, block: u32| {
            call!(driver, cuLaunchKernel(
            function => u64, grid => u32, 1 => u32, 1 => u32, block => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64,
            std::ptr::null() => *const c_void, std::ptr::null() => *const c_void))
        };
        assert_eq!([launch(0, 1), launch(1, 0), launch(1, 1025)], [1; 3]);
        assert_eq!(launch(1, 1024), 0);
        let cooperative = |grid: u32| {
            call!(driver, cuLaunchCooperativeKernel(
            function => u64, grid => u32, 1 => u32, 1 => u32, 1024 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64,
            std::ptr::null() => *const c_void))
        };
        assert_eq!((cooperative(40), cooperative(41)), (0, 720));
        ok!(driver, cuCtxSynchronize());
    });
}
