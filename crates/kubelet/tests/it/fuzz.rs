//! Nothing from outside makes the readers panic. Bounded here; `cargo xtask soak fuzz` goes on.

use std::panic::RefUnwindSafe;

use kubelet::cdi::{Kind, Spec};
use kubelet::checkpoint::Checkpoint;

/// Runs `check` on random bytes, for a few thousand of them or for as long as soak says.
fn on_bytes(seed: &str, check: impl Fn(&[u8]) + RefUnwindSafe) {
    let seconds = std::env::var("NANOGPU_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let target = bolero::check!().with_type::<(u16, Vec<u8>)>();
    let target = match seconds {
        Some(seconds) => target.with_test_time(std::time::Duration::from_secs(seconds)),
        None => target.with_iterations(5_000),
    };
    // Pure noise hardly passes the first check, so most inputs are a valid text with a hole.
    let seed = seed.as_bytes();
    target.for_each(|(at, noise)| {
        let (before, after) = seed.split_at(usize::from(*at) % (seed.len() + 1));
        check(noise);
        check(&[before, noise, after].concat());
        check(&[before, noise, after.get(1..).unwrap_or_default()].concat());
    });
}

#[test]
fn fuzz_checkpoint() {
    on_bytes(&super::checkpoint::full(), |text| {
        if let Ok(checkpoint) = Checkpoint::parse(text) {
            for entry in checkpoint.entries() {
                let _ = entry.answer();
                // Whoever is in the file is found by what it holds.
                assert!(checkpoint.holders(&entry.resource, &entry.ids).any(|one| one == entry));
            }
        }
    });
}

#[test]
fn fuzz_spec() {
    let seed = r#"{"cdiVersion":"0.5.0","kind":"nano-gpu/alloc","devices":[{"name":"0a","containerEdits":{"env":["A=b"],"deviceNodes":[{"path":"/dev/x","major":1}],"mounts":[{"hostPath":"/a","containerPath":"/b","options":["ro"]}],"hooks":[{"hookName":"prestart","path":"/x","timeout":1}]}}]}"#;
    on_bytes(seed, |text| {
        if let Ok(spec) = serde_json::from_slice::<Spec>(text) {
            let again = serde_json::to_vec(&spec).unwrap();
            assert_eq!(serde_json::from_slice::<Spec>(&again).unwrap(), spec);
        }
    });
}

#[test]
fn fuzz_cdi_names() {
    on_bytes("nano-gpu/alloc=0123456789abcdef", |text| {
        let text = String::from_utf8_lossy(text);
        let kind = Kind::parse("nano-gpu/alloc").unwrap();
        if let Some(name) = kind.device_in(&text) {
            assert_eq!(kind.device(name).unwrap(), text);
        }
        let _ = Kind::parse(&text);
    });
}
