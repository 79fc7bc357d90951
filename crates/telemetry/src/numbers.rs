//! The registry of a service's metrics, and its text.

use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// All metrics of a service. Registered once at the start, read at every scrape.
#[derive(Debug)]
pub struct Numbers {
    // A std Mutex: a scrape encodes without awaiting anything.
    registry: Mutex<Registry>,
}

impl Numbers {
    /// The type of the text that [`Numbers::text`] gives.
    pub const CONTENT_TYPE: &'static str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// An empty registry. Every name in it begins with `nanogpu_`.
    pub fn new() -> Self {
        Self { registry: Mutex::new(Registry::with_prefix("nanogpu")) }
    }

    /// Registers what `metrics` adds.
    pub fn register<T>(&self, metrics: impl FnOnce(&mut Registry) -> T) -> T {
        metrics(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All metrics as `OpenMetrics` text.
    pub fn text(&self) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        // Writing into a String cannot fail; a collector that gives up leaves what came before.
        let _ = encode(&mut text, &registry);
        text
    }
}

impl Default for Numbers {
    fn default() -> Self {
        Self::new()
    }
}

/// A histogram of durations in seconds, from a tenth of a millisecond to half a minute.
pub fn durations() -> Histogram {
    Histogram::new([
        0.0001, 0.000_25, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
        5.0, 10.0, 30.0,
    ])
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn metrics_carry_the_product_s_name() {
        let numbers = Numbers::new();
        let wakes: Counter = Counter::default();
        numbers.register(|registry| registry.register("wakes", "Pods woken", wakes.clone()));
        wakes.inc();
        let text = numbers.text();
        assert!(text.contains("nanogpu_wakes_total 1"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
