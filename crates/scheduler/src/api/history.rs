//! Use over time: a point every few seconds, the last hour, in memory. Who wants more has Prometheus.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::http::Reading;
use crate::service::Service;

/// Between two points.
const EVERY: Duration = Duration::from_secs(10);
/// An hour of them.
const MOST: usize = 360;

/// The cluster at one moment, added up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Point {
    /// Seconds since 1970.
    at: u64,
    cards: u64,
    cards_held: u64,
    cores: u64,
    cores_held: u64,
    #[serde(rename = "memoryMiB")]
    memory: u64,
    #[serde(rename = "memoryHeldMiB")]
    memory_held: u64,
    /// Cards that agents measure to be much busier than what was sold of them.
    hot: u64,
    /// Memory that processes of no pod of ours hold, as agents measure it.
    #[serde(rename = "strangersMiB")]
    strangers: u64,
    pods: u64,
    waiting: u64,
}

/// The last hour.
#[derive(Debug, Default)]
pub(super) struct History {
    // Held for an insertion or a copy only.
    points: Mutex<VecDeque<Point>>,
}

impl History {
    fn note(&self, point: Point) {
        let mut points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        while points.len() >= MOST {
            points.pop_front();
        }
        points.push_back(point);
    }

    pub(super) fn shown(&self) -> Value {
        let points = self.points.lock().unwrap_or_else(PoisonError::into_inner);
        json!({"everySeconds": EVERY.as_secs(), "points": *points})
    }
}

/// Adds a point now and then, for as long as the service lives.
pub(crate) async fn keep(reading: Arc<Reading>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        reading.live.history.note(now(&reading.service));
    }
}

fn now(service: &Service) -> Point {
    let picture = service.handle.picture();
    let mut point = Point { at: service.clock.wall().0 / 1_000_000_000, ..Point::default() };
    for node in picture.snapshot.nodes() {
        for state in &node.devices {
            point.cards += 1;
            point.cards_held += u64::from(state.used.holders > 0);
            point.cores += u64::from(state.device.cores.0);
            point.cores_held +=
                u64::from(state.device.cores.0.saturating_sub(state.free_cores().0));
            point.memory = point.memory.saturating_add(state.device.memory.0);
            let held = state.device.memory.0.saturating_sub(state.free_memory().0);
            point.memory_held = point.memory_held.saturating_add(held);
            point.hot += u64::from(state.load.hot);
            point.strangers = point.strangers.saturating_add(state.load.strangers.0);
        }
        let holds = |holder: &&Arc<model::Holder>| holder.claim != model::Claim::Nothing;
        point.pods += node.holders.iter().filter(holds).count() as u64;
    }
    let pending = service.handle.pods.all_pending();
    let waits =
        |pod: &&Arc<crate::state::Pending>| !picture.reserved.contains_key(&pod.seen.pod.id.uid);
    point.waiting = pending.iter().filter(waits).count() as u64;
    point
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let history = History::default();
        for at in 0..1000 {
            history.note(Point { at, ..Point::default() });
        }
        let shown = history.shown();
        let points = shown["points"].as_array().unwrap();
        assert_eq!(points.len(), MOST);
        assert_eq!((&points[0]["at"], &points[MOST - 1]["at"]), (&json!(640), &json!(999)));
    }
}
