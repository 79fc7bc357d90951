//! The CPU profile, of this very process.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prost::Message as _;
use scheduler::http::{Limits, Profile, profile_routes};
use telemetry::Shutdown;

use crate::build::World;
use crate::http::{get, send_raw};
use crate::serving::serve_with;

const PATH: &str = "/debug/pprof/profile";

/// A world as an address of `--address` serves it, with `--pprof` or without.
async fn served(asked: bool, address: &str) -> (World, SocketAddr, Shutdown) {
    let world = World::new(1).await;
    let second = Duration::from_secs(1);
    let limits = Limits { body: 64 << 10, arrive: second, at_once: 4, turn: second };
    let said = address.parse().unwrap();
    let (address, stop) =
        serve_with(&world, limits, |stopping| profile_routes(asked, said, stopping));
    (world, address, stop)
}

#[inline(never)]
fn counts_in_vain(until: &AtomicBool) -> u64 {
    let mut sum = 0u64;
    while !until.load(Ordering::Relaxed) {
        for number in 0..1000u64 {
            sum = black_box(sum.wrapping_mul(31).wrapping_add(number));
        }
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_profile_unless_asked_for_and_on_loopback() {
    for (asked, said) in [(false, "127.0.0.1:1"), (true, "10.0.0.1:1"), (true, "0.0.0.0:1")] {
        let (_world, address, _stop) = served(asked, said).await;
        let (status, answer) = get(address, &format!("{PATH}?seconds=1")).await;
        assert_eq!((status, answer.contains("no such route")), (404, true), "{asked} {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_that_is_none_is_refused_with_what_would_be_one() {
    let (_world, address, _stop) = served(true, "127.0.0.1:1").await;
    for bad in ["0", "121", "-1", "1.5", "long", ""] {
        let (status, answer) = get(address, &format!("{PATH}?seconds={bad}")).await;
        assert_eq!((status, answer.contains("1 to 120 whole seconds")), (400, true), "{answer}");
    }
}

/// One test: the profiler is the process's, and a second one elsewhere would be in the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_profile_names_what_was_busy_and_is_taken_one_at_a_time() {
    let (_world, address, stop) = served(true, "127.0.0.1:1").await;
    let done = Arc::new(AtomicBool::new(false));
    let until = done.clone();
    let busy = std::thread::spawn(move || counts_in_vain(&until));
    let ask = |seconds: u64| {
        let head = format!(
            "GET {PATH}?seconds={seconds} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        );
        tokio::spawn(async move { send_raw(address, head.as_bytes()).await })
    };
    let (one, other) = (ask(2), ask(2));
    let mut answers = [one.await.unwrap(), other.await.unwrap()];
    answers.sort_by_key(|(status, _)| *status);
    let [(status, bytes), (refused, why)] = answers;
    done.store(true, Ordering::Relaxed);
    busy.join().unwrap();
    assert_eq!((status, refused), (200, 409));
    let why = String::from_utf8(why).unwrap();
    assert!(why.contains("a profile is being taken"), "{why}");
    let profile = Profile::decode(&*bytes).unwrap();
    assert_eq!(profile.sample_type.len(), 2);
    assert!(profile.duration_nanos >= 2_000_000_000, "{}", profile.duration_nanos);
    assert!(!profile.sample.is_empty());
    let named = |text: &String| text.contains("counts_in_vain");
    assert!(profile.string_table.iter().any(named), "{:?}", profile.string_table);
    let looks = |text: &String| text.contains("trace_unsynchronized");
    assert!(!profile.string_table.iter().any(looks), "what looks is no part of what is seen");
    // The next one is not refused, and a stop does not wait for it.
    let next = ask(120);
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.ask();
    let (status, bytes) = next.await.unwrap();
    assert_eq!(status, 200);
    let profile = Profile::decode(&*bytes).unwrap();
    assert!(profile.duration_nanos < 30_000_000_000, "{}", profile.duration_nanos);
}
