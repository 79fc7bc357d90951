//! A plugin is registered, read and called, and stays so whatever the kubelet does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kubelet::devices::{Device, DeviceList, IdSet};
use kubelet::plugin::{
    self, Allocation, Choice, Config, Declined, DevicePlugin, Options, RegisterError, Running,
    Standing, State,
};
use kubelet::wire::device_plugin as wire;
use kubelet::{SocketError, Status};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use super::fake_kubelet::{FakeKubelet, Mood, Seen, dial};
use super::soon;

struct Toy {
    devices: watch::Sender<DeviceList>,
    started: mpsc::UnboundedSender<IdSet>,
    declines: AtomicBool,
    asked: Notify,
    /// Closed while the plugin cannot say yet whether it registers.
    gate: Semaphore,
}

impl DevicePlugin for Toy {
    fn options(&self) -> Options {
        Options { pre_start: true, preference: true }
    }

    fn devices(&self) -> watch::Receiver<DeviceList> {
        self.devices.subscribe()
    }

    async fn allocate(&self, ids: IdSet) -> Result<Allocation, Status> {
        let name = format!("example.com/toy={}", ids.digest());
        Ok(Allocation { cdi_devices: vec![wire::CdiDevice { name }], ..Default::default() })
    }

    async fn pre_start(&self, ids: IdSet) -> Result<(), Status> {
        if ids.contains("toy-3") {
            return Err(Status::failed_precondition("toy-3 is out of order"));
        }
        self.started.send(ids).unwrap();
        Ok(())
    }

    async fn prefer(&self, choice: Choice) -> Result<IdSet, Status> {
        let rest = choice.available.iter().filter(|id| !choice.required.contains(id)).rev();
        let more = choice.size - choice.required.len();
        Ok(choice.required.iter().chain(rest.take(more)).collect())
    }

    async fn may_register(&self) -> Result<(), Declined> {
        self.asked.notify_one();
        let _open = self.gate.acquire().await;
        if self.declines.load(Ordering::SeqCst) {
            return Err(Declined { reason: "example.com/toy is served by toy-plugin".into() });
        }
        Ok(())
    }
}

fn list(healthy: &[&str], unhealthy: &[&str]) -> DeviceList {
    let healthy = healthy.iter().map(|id| Device::healthy(*id));
    DeviceList::new(healthy.chain(unhealthy.iter().map(|id| Device::unhealthy(*id)))).unwrap()
}

fn toy() -> (Arc<Toy>, mpsc::UnboundedReceiver<IdSet>) {
    let (started, starts) = mpsc::unbounded_channel();
    let devices = watch::Sender::new(list(&["toy-1", "toy-2"], &["toy-3"]));
    let (declines, asked, gate) = (AtomicBool::new(false), Notify::new(), Semaphore::new(1));
    (Arc::new(Toy { devices, started, declines, asked, gate }), starts)
}

/// A plugin that hears of the folder by events alone: the next poll is a day away.
fn start(folder: &Path, toy: Arc<Toy>) -> Running {
    let config = Config::new(folder, "toy.sock", "example.com/toy").unwrap();
    plugin::start(config.poll_every(Duration::from_hours(24)), toy)
}

async fn until(running: &Running, what: &str, holds: impl FnMut(&Standing) -> bool) -> Standing {
    soon(what, running.standing().wait_for(holds)).await.unwrap().clone()
}

/// Lists what a waiting plugin waits for.
async fn waits_for(running: &Running, holds: impl Fn(&RegisterError) -> bool) {
    until(running, "the right reason to wait", |standing| match &standing.state {
        State::Waiting(error) => holds(error),
        _ => false,
    })
    .await;
}

fn told(ids: &[(&str, bool)]) -> Vec<(String, bool)> {
    ids.iter().map(|(id, healthy)| ((*id).to_owned(), *healthy)).collect()
}

#[tokio::test]
async fn a_plugin_is_registered_by_its_file_name_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (toy, _starts) = toy();
    let running = start(dir.path(), toy.clone());
    let (request, _) = kubelet.registered().await;
    assert_eq!(request.version, "v1beta1");
    assert_eq!(
        (request.endpoint.as_str(), request.resource_name.as_str()),
        ("toy.sock", "example.com/toy")
    );
    assert_eq!(kubelet.list().await, told(&[("toy-1", true), ("toy-2", true), ("toy-3", false)]));
    soon("watched", running.watched()).await.unwrap();

    toy.devices.send_replace(list(&["toy-1"], &["toy-2"]));
    assert_eq!(kubelet.list().await, told(&[("toy-1", true), ("toy-2", false)]));
    toy.devices.send_replace(list(&["toy-1", "toy-4"], &[]));
    assert_eq!(kubelet.list().await, told(&[("toy-1", true), ("toy-4", true)]));
    assert_eq!(running.standing().borrow().registrations, 1);
}

#[tokio::test]
async fn what_the_kubelet_asks_reaches_the_plugin_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (toy, mut starts) = toy();
    let _running = start(dir.path(), toy);
    let (_, mut client) = kubelet.registered().await;
    let ids = || vec!["toy-2".to_owned(), "toy-1".to_owned()];
    let set: IdSet = ids().into_iter().collect();

    let container_requests = vec![wire::ContainerAllocateRequest { devices_ids: ids() }; 2];
    let answer = client.allocate(wire::AllocateRequest { container_requests }).await.unwrap();
    let answers = answer.into_inner().container_responses;
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[1].cdi_devices[0].name, format!("example.com/toy={}", set.digest()));

    client
        .pre_start_container(wire::PreStartContainerRequest { devices_ids: ids() })
        .await
        .unwrap();
    assert_eq!(starts.recv().await.unwrap(), set);
    let broken = wire::PreStartContainerRequest { devices_ids: vec!["toy-3".into()] };
    let refused = client.pre_start_container(broken).await.unwrap_err();
    assert_eq!(refused.message(), "toy-3 is out of order");

    let container_requests = vec![wire::ContainerPreferredAllocationRequest {
        available_device_i_ds: vec!["a".into(), "b".into(), "c".into()],
        must_include_device_i_ds: vec!["a".into()],
        allocation_size: 2,
    }];
    let request = wire::PreferredAllocationRequest { container_requests };
    let preferred = client.get_preferred_allocation(request).await.unwrap().into_inner();
    assert_eq!(preferred.container_responses[0].device_i_ds, ["a", "c"]);
}

#[tokio::test]
async fn a_restarted_kubelet_gets_the_plugin_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (toy, _starts) = toy();
    let running = start(dir.path(), toy.clone());
    kubelet.list().await;
    drop(kubelet);

    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    kubelet.registered().await;
    assert_eq!(kubelet.list().await.len(), 3);
    toy.devices.send_replace(list(&["toy-1"], &[]));
    assert_eq!(kubelet.list().await, told(&[("toy-1", true)]));
    until(&running, "watched again", |now| {
        now.registrations >= 2 && matches!(now.state, State::Watched)
    })
    .await;
}

#[tokio::test]
async fn restarts_in_quick_succession_end_with_the_last_kubelet() {
    let dir = tempfile::tempdir().unwrap();
    let first = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (toy, _starts) = toy();
    let running = start(dir.path(), toy);
    soon("watched", running.watched()).await.unwrap();
    drop(first);
    // No pause at all between them, then with whatever the plugin does in between.
    for rounds in [0, 1, 10, 100] {
        drop(FakeKubelet::start(dir.path(), Mood::Accepting));
        for _ in 0..rounds {
            tokio::task::yield_now().await;
        }
        let mut last = FakeKubelet::start(dir.path(), Mood::Accepting);
        last.registered().await;
        assert_eq!(last.list().await.len(), 3);
        until(&running, "watched", |now| matches!(now.state, State::Watched)).await;
        assert!(dir.path().join("toy.sock").exists());
    }
}

#[tokio::test]
async fn a_socket_that_someone_removed_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (toy, _starts) = toy();
    let _running = start(dir.path(), toy);
    kubelet.list().await;
    std::fs::remove_file(dir.path().join("toy.sock")).unwrap();
    // The old stream ends before the new registration: this order matters to a kubelet.
    let mut ended = false;
    loop {
        match kubelet.next().await {
            Seen::StreamEnded => ended = true,
            Seen::Registered(..) => break,
            Seen::List(_) => {}
        }
    }
    assert!(ended);
    assert_eq!(kubelet.list().await.len(), 3);
    dial(&dir.path().join("toy.sock")).await;
}

#[tokio::test]
async fn a_plugin_waits_for_a_kubelet_and_for_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("device-plugins");
    let (toy, _starts) = toy();
    let config = Config::new(&folder, "toy.sock", "example.com/toy").unwrap();
    // A folder that comes later is nothing an event tells: this is what the poll is for.
    let running = plugin::start(config.poll_every(Duration::from_millis(20)), toy);
    waits_for(&running, |error| matches!(error, RegisterError::Socket(SocketError::Bind { .. })))
        .await;
    std::fs::create_dir(&folder).unwrap();
    waits_for(&running, |error| matches!(error, RegisterError::NoKubelet { .. })).await;
    let mut kubelet = FakeKubelet::start(&folder, Mood::Accepting);
    assert_eq!(kubelet.list().await.len(), 3);

    // The folder goes and comes back: so does the plugin.
    drop(kubelet);
    std::fs::rename(&folder, dir.path().join("old")).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let mut kubelet = FakeKubelet::start(&folder, Mood::Accepting);
    assert_eq!(kubelet.list().await.len(), 3);
    soon("watched", running.watched()).await.unwrap();
}

#[tokio::test]
async fn a_refusal_is_told_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(dir.path(), Mood::Refusing);
    let (toy, _starts) = toy();
    let running = start(dir.path(), toy);
    waits_for(&running, |error| {
        error.to_string() == "the kubelet refused the plugin of example.com/toy: not today"
    })
    .await;
    drop(kubelet);
    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    kubelet.registered().await;
}

#[tokio::test]
async fn a_plugin_that_declines_is_not_registered_until_it_wants_to() {
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (toy, _starts) = toy();
    toy.declines.store(true, Ordering::SeqCst);
    let running = start(dir.path(), toy.clone());
    waits_for(&running, |error| matches!(error, RegisterError::Declined { .. })).await;
    // It is asked again without any event.
    soon("first question", toy.asked.notified()).await;
    soon("second question", toy.asked.notified()).await;
    assert_eq!(running.standing().borrow().registrations, 0);
    toy.declines.store(false, Ordering::SeqCst);
    kubelet.registered().await;
}

#[tokio::test]
async fn another_process_at_our_socket_is_left_alone_and_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (old, _starts) = toy();
    let old = start(dir.path(), old);
    kubelet.list().await;
    let (new, _starts) = toy();
    let new = start(dir.path(), new);
    waits_for(&new, |error| matches!(error, RegisterError::Socket(SocketError::InUse { .. })))
        .await;
    assert!(matches!(old.standing().borrow().state, State::Watched));
    old.stop().await;
    soon("the new one is watched", new.watched()).await.unwrap();
}

#[tokio::test]
async fn a_stopped_plugin_leaves_no_socket_and_no_stream() {
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (toy, _starts) = toy();
    let running = start(dir.path(), toy);
    kubelet.list().await;
    let standing = running.standing();
    soon("stop", running.stop()).await;
    assert!(matches!(standing.borrow().state, State::Stopped));
    assert!(!dir.path().join("toy.sock").exists());
    kubelet.stream_ended().await;
}

#[tokio::test]
async fn a_dropped_plugin_stops_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (toy, _starts) = toy();
    let running = start(dir.path(), toy);
    kubelet.list().await;
    let mut standing = running.standing();
    drop(running);
    soon("stopped", standing.wait_for(|now| matches!(now.state, State::Stopped))).await.unwrap();
    kubelet.stream_ended().await;
}

#[test]
fn a_plugin_cannot_take_the_kubelets_names() {
    for bad in ["", ".", "..", "a/b", "/a", "kubelet.sock", "kubelet_internal_checkpoint"] {
        assert!(Config::new("/x", bad, "example.com/toy").is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_kubelet_that_starts_while_a_plugin_is_about_to_register_finds_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = FakeKubelet::start(dir.path(), Mood::Accepting);
    let (toy, _starts) = toy();
    let running = start(dir.path(), toy.clone());
    first.list().await;
    until(&running, "watched", |now| matches!(now.state, State::Watched)).await;
    soon("asked", toy.asked.notified()).await;
    // The kubelet dies; whether the plugin may register cannot be known until the next one lives.
    let closed = toy.gate.acquire().await.unwrap();
    drop(first);
    soon("asked again", toy.asked.notified()).await;
    let mut second = FakeKubelet::start(dir.path(), Mood::Accepting);
    // One that starts twice in a second: the plugin must follow to the last.
    soon("asked by the second", toy.asked.notified()).await;
    drop(second);
    second = FakeKubelet::start(dir.path(), Mood::Accepting);
    drop(closed);
    assert_eq!(second.registered().await.0.endpoint, "toy.sock");
    second.list().await;
    assert!(dir.path().join("toy.sock").exists());
}
