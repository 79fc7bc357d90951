//! The dashboard's files, its stream and its history, through real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use kubeapi::SeenPod;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::build::pod;
use crate::http::{get, served};

/// Everything of an answer, head and body.
async fn whole(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// A stream of changes, read message by message.
struct Listening {
    stream: TcpStream,
    text: String,
}

impl Listening {
    async fn start(address: SocketAddr, path: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        Self { stream, text: String::new() }
    }

    /// Reads on until `text` has come once more; false if the stream ends first.
    async fn hears(&mut self, text: &str) -> bool {
        let mut bytes = [0; 1024];
        loop {
            if let Some(at) = self.text.find(text) {
                self.text.drain(..at + text.len());
                return true;
            }
            let read = self.stream.read(&mut bytes);
            let read = tokio::time::timeout(Duration::from_secs(30), read).await.expect("a word");
            match read {
                Ok(0) | Err(_) => return false,
                Ok(read) => self.text.push_str(&String::from_utf8_lossy(&bytes[..read])),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_with_a_policy_that_allows_nothing_from_elsewhere() {
    let (_world, address, _stop) = served(1).await;
    for (file, kind) in
        [("", "text/html"), ("app.js", "text/javascript"), ("style.css", "text/css")]
    {
        let answer = whole(address, &format!("/dashboard/{file}")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{file}: {answer}");
        for head in [
            &format!("content-type: {kind}"),
            "content-security-policy: default-src 'self';",
            "require-trusted-types-for 'script'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
        ] {
            assert!(answer.contains(head), "{file} lacks {head}");
        }
    }
    assert!(whole(address, "/dashboard").await.contains("location: dashboard/"));
    for path in ["/dashboard/other.js", "/dashboard/%2e%2e%2fCargo.toml"] {
        assert_eq!(get(address, path).await.0, 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_told_and_what_changes_nothing_is_not() {
    let (world, address, _stop) = served(1).await;
    let mut all = Listening::start(address, "/api/v1/events").await;
    assert!(all.hears("content-type: text/event-stream").await);
    // The first comes at once, so that nothing is missed between a look and the stream.
    assert!(all.hears("event: changed").await);
    let mut team = Listening::start(address, "/api/v1/events?namespace=elsewhere").await;
    assert!(team.hears("event: changed").await);

    world.store.put(&pod("a", "20"));
    assert!(all.hears("event: changed").await);
    // The same pod once more: nothing a page would show is different. The next one is.
    world.store.show("a");
    world.store.put(&pod("b", "20"));
    assert!(all.hears("event: changed").await);
    let mut other = pod("c", "20");
    other["metadata"]["namespace"] = json!("elsewhere");
    let seen = SeenPod::from_json(&other.to_string()).unwrap();
    world.tell(kubeapi::Seen::Pod(std::sync::Arc::new(seen))).await;
    assert!(team.hears("event: changed").await);
    assert!(!team.text.contains("changed"), "pods of others were told: {}", team.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_when_the_program_stops() {
    let (_world, address, stop) = served(1).await;
    let mut listening = Listening::start(address, "/api/v1/events").await;
    assert!(listening.hears("event: changed").await);
    stop.ask();
    assert!(!listening.hears("event: never").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_and_a_place_is_given_back() {
    let (_world, address, _stop) = served(1).await;
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut listening = Listening::start(address, "/api/v1/events").await;
        assert!(listening.hears("event: changed").await);
        open.push(listening);
    }
    let (status, body) = get(address, "/api/v1/events").await;
    assert_eq!((status, body.contains("too many pages")), (503, true), "{body}");
    // Other questions are answered all the same: a stream takes no place to work in.
    assert_eq!(get(address, "/api/v1/nodes").await.0, 200);
    open.clear();
    let mut again = Listening::start(address, "/api/v1/events").await;
    while !again.hears("event: changed").await {
        tokio::time::sleep(Duration::from_millis(50)).await;
        again = Listening::start(address, "/api/v1/events").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_namespace_is_seen_without_the_others() {
    let (world, address, _stop) = served(1).await;
    let mut other = pod("c", "20");
    other["metadata"]["namespace"] = json!("elsewhere");
    for pod in [pod("a", "20"), other] {
        let seen = SeenPod::from_json(&pod.to_string()).unwrap();
        world.tell(kubeapi::Seen::Pod(std::sync::Arc::new(seen))).await;
    }
    // What is told is seen a moment later.
    loop {
        let (_, body) = get(address, "/api/v1/pods").await;
        match serde_json::from_str::<Vec<Value>>(&body).unwrap().len() {
            2 => break,
            fewer => assert!(fewer < 2, "{body}"),
        }
        tokio::task::yield_now().await;
    }
    let (_, body) = get(address, "/api/v1/pods?namespace=elsewhere").await;
    let pods: Vec<Value> = serde_json::from_str(&body).unwrap();
    assert_eq!(pods.iter().map(|pod| &pod["name"]).collect::<Vec<_>>(), ["c"]);
    for path in ["shares", "quotas"] {
        let (status, _) = get(address, &format!("/api/v1/{path}?namespace=elsewhere")).await;
        assert_eq!(status, 200, "{path}");
    }
}
