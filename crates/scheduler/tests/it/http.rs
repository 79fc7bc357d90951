//! HTTP through real sockets: whatever comes in, an answer goes out.

use std::net::SocketAddr;
use std::time::Duration;

use scheduler::http::{Limits, Listener, Mode, wait_until_free};
use serde_json::{Value, json};
use telemetry::Shutdown;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::build::{World, bind_body, filter_body, pod};

/// A served world, and the way to stop it.
pub(crate) async fn served(nodes: usize) -> (World, SocketAddr, Shutdown) {
    let world = World::new(nodes).await;
    let limits = Limits {
        body: 64 << 10,
        arrive: Duration::from_millis(300),
        at_once: 4,
        turn: Duration::from_millis(300),
    };
    let (address, shutdown) = crate::serving::serve_world(&world, limits);
    (world, address, shutdown)
}

/// Sends these bytes and reads the whole answer: its status and its body.
async fn send(address: SocketAddr, bytes: &[u8]) -> (u16, String) {
    let (status, body) = send_raw(address, bytes).await;
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// The same where the body is no text.
pub(crate) async fn send_raw(address: SocketAddr, bytes: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A server that refuses early may close while we still write; its answer is what counts.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(30), read).await.expect("an answer");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.map_or(answer.len(), |end| end + 4));
    let head = String::from_utf8_lossy(head);
    let status = head.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {head}"));
    (status.parse().unwrap(), body.to_vec())
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &[u8]) -> (u16, String) {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    send(address, &[head.as_bytes(), body].concat()).await
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    send(address, head.as_bytes()).await
}

fn json(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_of_the_systems_we_replace_is_served() {
    let (world, address, _stop) = served(2).await;
    let body = filter_body(&pod("a", "20"), &world.names());
    for path in ["/scheduler/filter", "/gpushare-scheduler/filter", "/scheduler/filter-dryrun"] {
        let (status, answer) = post(address, path, &body).await;
        assert_eq!(status, 200, "{path}");
        assert_eq!(json(&answer)["NodeNames"], json!(["n-0", "n-1"]), "{path}");
    }
    for path in ["/scheduler/priorities", "/scheduler/prioritize"] {
        let (_, answer) = post(address, path, &body).await;
        let scores = json(&answer);
        assert_eq!(scores, json!([{"Host": "n-0", "Score": 10}, {"Host": "n-1", "Score": 9}]));
    }
    for path in ["/version", "/healthz", "/readyz", "/metrics", "/scheduler/status"] {
        assert_eq!(get(address, path).await.0, 200, "{path}");
    }
    for path in
        ["nodes", "devices", "pods", "shares", "quotas", "decisions", "snapshot", "openapi.json"]
    {
        let (status, answer) = get(address, &format!("/api/v1/{path}")).await;
        assert_eq!(status, 200, "{path}");
        json(&answer);
    }
    let (_, inspect) = get(address, "/gpushare-scheduler/inspect").await;
    assert_eq!(json(&inspect)["nodes"][0]["totalGPU"], json!(32));
    let (_, one) = get(address, "/gpushare-scheduler/inspect/n-1").await;
    assert_eq!(json(&one)["nodes"][0]["devs"].as_array().unwrap().len(), 2);
    let (_, none) = get(address, "/gpushare-scheduler/inspect/nobody").await;
    assert_eq!(json(&none)["error"], json!("node nobody is not known"));
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_shown_wherever_one_looks() {
    let (world, address, _stop) = served(1).await;
    let (_, inspect) = get(address, "/gpushare-scheduler/inspect").await;
    assert_eq!(json(&inspect).get("quotas"), None, "gpushare's own form where there is none");
    let quota = r#"{"team": {"quota": {"T4": 2}}}"#;
    let quota = ledger::Quota::from_gpu_admission(quota).unwrap();
    world.tell(kubeapi::Seen::Ledger(ledger::Event::Quota(quota))).await;
    let mut held = pod("a", "30");
    held["spec"]["nodeName"] = json!("n-0");
    held["metadata"]["annotations"] =
        json!({"nano-gpu/placement": "v1;n-0;c=GPU-n-0-0:30%+4915Mi"});
    world.store.put(&held);
    world.settle().await;
    let (_, quotas) = get(address, "/api/v1/quotas").await;
    let quotas = json(&quotas);
    assert_eq!(quotas[0]["namespace"], json!("team"));
    assert_eq!(quotas[0]["rules"][0]["model"], json!("T4"));
    let (_, inspect) = get(address, "/gpushare-scheduler/inspect").await;
    let inspect = json(&inspect);
    assert_eq!(inspect["quotas"], quotas);
    assert_eq!(inspect["nodes"][0]["devs"][0]["pods"][0]["name"], json!("a"));
    scheduler::metrics::Capacity::register(world.handle.clone(), &world.numbers);
    let (_, metrics) = get(address, "/metrics").await;
    let limit = metrics.lines().find(|line| line.starts_with("nanogpu_quota_limit{"));
    assert!(limit.is_some_and(|line| line.contains("namespace=\"team\"")), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_cards_pass_untouched_in_either_form() {
    let (_world, address, _stop) = served(1).await;
    let ordinary = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}});
    let names = json!({"Pod": ordinary, "NodeNames": ["x", "y", "x"]}).to_string();
    let (_, answer) = post(address, "/scheduler/filter", names.as_bytes()).await;
    assert_eq!(json(&answer)["NodeNames"], json!(["x", "y", "x"]));
    let nodes =
        json!({"pod": ordinary, "nodes": {"items": [{"metadata": {"name": "x"}}]}}).to_string();
    let (_, answer) = post(address, "/scheduler/filter", nodes.as_bytes()).await;
    assert_eq!(json(&answer)["Nodes"]["items"], json!([{"metadata": {"name": "x"}}]));
    assert_eq!(json(&answer)["NodeNames"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_repetitions_are_sorted_out() {
    let (_world, address, _stop) = served(2).await;
    let names = ["n-1", "stranger", "n-1", "Not A Name", "n-0"].map(str::to_owned);
    let (_, answer) =
        post(address, "/scheduler/filter", &filter_body(&pod("a", "20"), &names)).await;
    let answer = json(&answer);
    assert_eq!(answer["NodeNames"], json!(["n-1", "n-0"]));
    let unknown = "the node is not known to nanogpu yet";
    assert_eq!(answer["FailedNodes"], json!({"stranger": unknown, "Not A Name": unknown}));
    assert_eq!(answer["Error"], json!(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_sorted_by_whether_waiting_helps() {
    let (world, address, _stop) = served(1).await;
    let large = json!({"metadata": {"name": "a", "uid": "u"}, "spec": {"containers": [
        {"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "20"}}}]}});
    let (_, answer) =
        post(address, "/scheduler/filter", &filter_body(&large, &world.names())).await;
    let never = &json(&answer)["FailedAndUnresolvableNodes"]["n-0"];
    assert_eq!(*never, json!("no card of 20480 MiB"));
    let wrong = pod("w", "150");
    let (_, answer) =
        post(address, "/scheduler/filter", &filter_body(&wrong, &world.names())).await;
    let never = json(&answer)["FailedAndUnresolvableNodes"]["n-0"].as_str().unwrap().to_owned();
    assert!(never.starts_with("container c: nano-gpu/gpu-percent is 150;"), "{never}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_a_clear_answer() {
    let (world, address, _stop) = served(1).await;
    let verbs = ["filter", "prioritize", "bind", "preempt", "predicates"];
    for verb in verbs {
        let path = format!("/scheduler/{verb}");
        let (status, answer) = post(address, &path, b"").await;
        assert_eq!((status, answer.contains("Please send a request body")), (400, true), "{verb}");
        for body in ["{", "[]", "null", "7", "\u{0}", r#"{"Pod":7,"NodeNames":["n-0"]}"#] {
            let (status, answer) = post(address, &path, body.as_bytes()).await;
            let answer = json(&answer);
            let why = answer.get("error").or(answer.get("Error")).and_then(Value::as_str);
            assert!(
                status < 500 && why.is_some_and(|why| !why.is_empty()),
                "{verb} {body}: {answer}"
            );
        }
        let too_large = vec![b' '; 65 << 10];
        let (status, answer) = post(address, &path, &too_large).await;
        assert_eq!((status, answer.contains("larger than 65536 bytes")), (413, true), "{verb}");
    }
    assert_eq!(post(address, "/scheduler/unknown", b"{}").await.0, 404);
    assert_eq!(get(address, "/scheduler/bind").await.0, 405);
    assert_eq!(get(address, "/").await.0, 404);
    assert_eq!(post(address, "/api/v1/simulate", b"not: [a pod").await.0, 422);
    assert_eq!(get(address, "/api/v1/why/team/nobody").await.0, 404);
    // And it still works.
    let body = filter_body(&pod("a", "20"), &world.names());
    assert_eq!(post(address, "/scheduler/filter", &body).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_is_answered_and_others_are_served_meanwhile() {
    let (world, address, _stop) = served(1).await;
    let slow = tokio::spawn(async move {
        let head = b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{";
        send(address, head).await
    });
    let body = filter_body(&pod("a", "20"), &world.names());
    assert_eq!(post(address, "/scheduler/filter", &body).await.0, 200);
    let (status, answer) = slow.await.unwrap();
    assert_eq!((status, answer.contains("did not arrive in time")), (408, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_can_be_worked_on_are_told_to_come_back() {
    let (_world, address, _stop) = served(1).await;
    let head = b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{";
    let mut slow = Vec::new();
    for _ in 0..12 {
        slow.push(tokio::spawn(send(address, head)));
    }
    let mut statuses = Vec::new();
    for task in slow {
        statuses.push(task.await.unwrap().0);
    }
    assert!(statuses.iter().all(|status| [408, 503].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&408), "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_of_strangers_hold_up_no_verb() {
    let (world, address, _stop) = served(1).await;
    let slow = |path: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{{"
        );
        tokio::spawn(async move { send(address, head.as_bytes()).await.0 })
    };
    // As many as there are places, at each of the doors that are open to all.
    let strangers: Vec<_> = ["/admission", "/api/v1/simulate"]
        .into_iter()
        .flat_map(|path| [path; 4])
        .map(slow)
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let body = filter_body(&pod("a", "20"), &world.names());
    let before = std::time::Instant::now();
    assert_eq!(post(address, "/scheduler/filter", &body).await.0, 200);
    assert_eq!(get(address, "/metrics").await.0, 200);
    assert!(before.elapsed() < Duration::from_millis(190), "{:?}", before.elapsed());
    for stranger in strangers {
        assert_eq!(stranger.await.unwrap(), 408);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_that_reads_has_its_turn_or_is_told_to_come_back() {
    let world = World::new(1).await;
    let limits = Limits {
        body: 64 << 10,
        arrive: Duration::from_secs(3),
        at_once: 4,
        turn: Duration::from_millis(300),
    };
    let (address, _stop) = crate::serving::serve_world(&world, limits);
    let paths = ["/api/v1/history", "/api/v1/openapi.json", "/dashboard/", "/api/v1/nodes"];
    let head = b"POST /api/v1/simulate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{";
    let slow: Vec<_> = (0..4).map(|_| tokio::spawn(send(address, head))).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for path in paths {
        let (status, answer) = get(address, path).await;
        assert_eq!((status, answer.contains("too many requests")), (503, true), "{path}");
    }
    // Probes are answered whatever else is going on.
    assert_eq!(get(address, "/healthz").await.0, 200);
    assert_eq!(get(address, "/readyz").await.0, 200);
    for slow in slow {
        assert_eq!(slow.await.unwrap().0, 408);
    }
    for path in paths {
        assert_eq!(get(address, path).await.0, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_rests_between_requests_is_kept() {
    let (world, address, _stop) = served(1).await;
    let body = filter_body(&pod("a", "20"), &world.names());
    let head = format!(
        "POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let request = [head.as_bytes(), &body].concat();
    let mut stream = TcpStream::connect(address).await.unwrap();
    for pause in [0, 12] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        stream.write_all(&request).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).await.unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "after {pause} seconds");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn preempt_leaves_out_nodes_without_a_good_set() {
    let (world, address, _stop) = served(2).await;
    let mut low = pod("low", "100");
    low["spec"]["nodeName"] = json!("n-0");
    low["spec"]["priority"] = json!(-5);
    low["metadata"]["annotations"] = json!({"nano-gpu/placement": "v1;n-0;c=GPU-n-0-0:whole"});
    low["status"]["phase"] = json!("Running");
    let mut other = low.clone();
    other["metadata"]["name"] = json!("other");
    other["metadata"]["uid"] = json!("uid-other");
    other["metadata"]["annotations"] = json!({"nano-gpu/placement": "v1;n-0;c=GPU-n-0-1:whole"});
    world.store.put(&low);
    world.store.put(&other);
    world.settle().await;
    let ask = |victims: Value| {
        json!({"Pod": pod("high", "100"), "NodeNameToMetaVictims": victims}).to_string()
    };
    let victims = json!({
        "n-0": {"Pods": [{"UID": "uid-low"}]},
        "n-1": {"Pods": [{"UID": "nobody-knows"}]},
        "never-seen": {"Pods": [{"UID": "uid-low"}]},
    });
    let (status, answer) = post(address, "/scheduler/preempt", ask(victims).as_bytes()).await;
    assert_eq!(status, 200);
    let nodes = json(&answer)["NodeNameToMetaVictims"].clone();
    assert_eq!(nodes.as_object().unwrap().len(), 1, "{nodes}");
    assert_eq!(nodes["n-0"]["Pods"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn why_names_the_numbers_and_what_would_help() {
    let (world, address, _stop) = served(1).await;
    for (name, card) in [("x", 0), ("y", 1)] {
        let mut full = pod(name, "60");
        full["spec"]["nodeName"] = json!("n-0");
        let placement = format!("v1;n-0;c=GPU-n-0-{card}:60%+9830Mi");
        full["metadata"]["annotations"] = json!({"nano-gpu/placement": placement});
        world.store.put(&full);
    }
    world.store.put(&pod("a", "50"));
    world.settle().await;
    let (_, answer) = get(address, "/api/v1/why/team/a").await;
    let why = json(&answer);
    assert_eq!(
        why["summary"],
        json!("1 node: 1 short of compute on one card, best has 40% of 50%")
    );
    assert_eq!(why["refused"][0]["best"]["cores"], json!(40));
    assert_eq!(why["whatWouldHelp"][0], json!("other pods ending, or asking for less"));
    assert_eq!(
        why["preemption"]["now"],
        json!("no pod of lower priority holds what this pod needs")
    );
    let simulated = pod("s", "40").to_string();
    let (_, answer) = post(address, "/api/v1/simulate", simulated.as_bytes()).await;
    assert_eq!(json(&answer)["nodes"][0]["placement"], json!("v1;n-0;c=GPU-n-0-0:40%+6553Mi"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_loopback_needs_more_than_a_wish() {
    let address = SocketAddr::from(([0, 0, 0, 0], 0));
    let listener = Listener { address, mode: Mode::Loopback, router: axum::Router::new() };
    let error = listener.bind().unwrap_err().to_string();
    assert!(error.contains("--insecure"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_in_use_is_waited_for_and_not_for_ever() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = wait_until_free([address], Duration::ZERO).await.unwrap_err();
    let words = format!("cannot listen on {address} (end who has it, or give another address)");
    assert_eq!(error.to_string(), words);
    let waiting = tokio::spawn(wait_until_free([address], Duration::from_mins(1)));
    drop(taken);
    waiting.await.unwrap().unwrap();
    // Another's address is no matter of time.
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
    wait_until_free([elsewhere], Duration::MAX).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_begun_is_finished_when_asked_to_stop() {
    let (world, address, stop) = served(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    world.store.faults.lock().unwrap().push_back(crate::build::Fault::Slow);
    let body = bind_body("a", "n-0");
    let binding = tokio::spawn(async move { post(address, "/scheduler/bind", &body).await });
    while *world.store.bindings.lock().unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.ask();
    let (status, answer) = binding.await.unwrap();
    assert_eq!((status, json(&answer)["Error"].clone()), (200, json!("")));
}
