//! Nothing from outside makes the readers panic. Bounded here; `cargo xtask soak fuzz` goes on.

use model::codec::{decode_inventory, decode_placement, encode_inventory, encode_placement};
use model::{ContainerName, DeviceId, NodeName, Pod, Quantity};

/// Runs `check` on random texts, for a few thousand of them or for as long as soak says.
fn on_texts(seeds: &'static [&'static str], check: impl Fn(&str) + std::panic::RefUnwindSafe) {
    let seconds = std::env::var("NANOGPU_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let target = bolero::check!().with_type::<(u8, u16, Vec<u8>)>();
    let target = match seconds {
        Some(seconds) => target.with_test_time(std::time::Duration::from_secs(seconds)),
        None => target.with_iterations(20_000),
    };
    // Pure noise hardly passes the first check, so most inputs are a valid text with a hole.
    target.for_each(|(pick, at, noise)| {
        let noise = String::from_utf8_lossy(noise);
        let seed = seeds[usize::from(*pick) % seeds.len()];
        let at = usize::from(*at) % (seed.len() + 1);
        let (before, after) = (seed.get(..at).unwrap_or(""), seed.get(at..).unwrap_or(""));
        check(&noise);
        check(&format!("{before}{noise}{after}"));
        check(&format!("{before}{noise}{}", after.get(1..).unwrap_or("")));
    });
}

#[test]
fn fuzz_placement() {
    on_texts(&["v1;gpu-1@7;init:a=GPU-1:whole;main=GPU-1:30%+4915Mi,GPU-2:0%+1Mi"], |text| {
        if let Ok(placement) = decode_placement(text) {
            // One spelling each: what is accepted is exactly what would be written.
            assert_eq!(encode_placement(&placement), text);
        }
    });
}

#[test]
fn fuzz_inventory() {
    let seed = r#"{"v":1,"devices":[{"id":"GPU-1","index":0,"minor":0,"model":"T4","mem":16384,"mig":{"slice":{"parent":"GPU-0","profile":"1g"}}},{"id":"GPU-2","index":1,"minor":1,"model":"T4","mem":1,"health":"sick","cores":50}],"links":{"PIX+NV2":"0-1"}}"#;
    on_texts(Box::leak(Box::new([seed])), |text| {
        if let Ok(inventory) = decode_inventory(text) {
            assert_eq!(decode_inventory(&encode_inventory(&inventory)).unwrap(), inventory);
        }
    });
}

#[test]
fn fuzz_quantity() {
    on_texts(&["1.5Gi", "-0.0001e-3", "9223372036854775807", "0.00000000000000000001Ei"], |text| {
        if let Ok(quantity) = Quantity::parse(text) {
            let _ = (quantity.whole(), quantity.milli(), quantity.ceil());
        }
    });
}

#[test]
fn fuzz_pod() {
    on_texts(
        &[
            r#"{"metadata":{"name":"a","uid":"u"},"spec":{"nodeName":"n","containers":[{"name":"c","resources":{"limits":{"cpu":"1e9","memory":7}}}]}}"#,
        ],
        |text| {
            if let Ok(pod) = Pod::from_json(text) {
                let _ = pod.host();
            }
        },
    );
}

#[test]
fn fuzz_names() {
    on_texts(&["gpu-1.rack"], |text| {
        let _ = (NodeName::parse(text), DeviceId::parse(text), ContainerName::parse(text));
    });
}
