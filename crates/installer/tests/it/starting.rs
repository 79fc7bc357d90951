//! nanogpu-scheduler that does not answer at once is asked again.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use rustls::crypto::ring::default_provider;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::made_up::{Machine, OLD};

/// Answers one connection after another.
fn serve(mut answer: impl FnMut(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap())));
    address
}

fn say(stream: &mut (impl Read + Write), status: &str) {
    let body = if status.starts_with("200") { "ok" } else { "no first sync yet" };
    // Who asks may be gone.
    let _ = stream.read(&mut [0; 4096]);
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
}

/// Plays kube-scheduler, which is always well, and started anew whenever one looks: it makes itself a
/// certificate each time.
fn kube_scheduler() -> SocketAddr {
    serve(|stream| {
        let made = rcgen::generate_simple_self_signed(["kube-scheduler".to_owned()]).unwrap();
        let key = made.signing_key.serialize_der().try_into().unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        say(&mut StreamOwned::new(connection, stream), "200 OK");
    })
}

/// Plays nanogpu-scheduler, which gives these answers, and then the last one for ever.
fn nanogpu_scheduler(answers: &'static [&'static str]) -> SocketAddr {
    let mut answers = answers.iter().chain(std::iter::repeat(answers.last().unwrap()));
    serve(move |mut stream| say(&mut stream, answers.next().unwrap()))
}

/// The words to put in a nanogpu-scheduler that gives these answers.
fn patch(answers: &'static [&'static str], within: u64) -> String {
    let (extender, health) = (nanogpu_scheduler(answers), kube_scheduler());
    format!(
        "patch --extender http://{extender}/scheduler --verify-url https://{health}/healthz --within {within} --steady 0"
    )
}

const LATE: &str = "503 Service Unavailable";

#[test]
fn one_that_is_late_is_waited_for_before_and_after() {
    let machine = Machine::new(OLD);
    let said = machine.run(&patch(&[LATE, "200 OK", LATE, LATE, "200 OK"], 20));
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.error);
    let late = "is not ready: 503 no first sync yet; asked again for 20 seconds.";
    assert_eq!(said.out.matches(late).count(), 2, "{}", said.out);
    assert!(said.out.contains("kube-scheduler runs with nanogpu"), "{}", said.out);
    assert!(machine.run("status").out.starts_with("patched"));
}

#[test]
fn one_that_never_comes_is_given_up() {
    let machine = Machine::new(OLD);
    machine
        .refuses(&patch(&[LATE], 1), "is not ready: 503 no first sync yet (asked for 1 seconds)");
}

#[test]
fn one_that_goes_away_meanwhile_is_taken_out_again() {
    let machine = Machine::new(OLD);
    let before = machine.files();
    let said = machine.run(&patch(&["200 OK", LATE], 1));
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.error);
    assert!(said.out.contains("Rolling back."), "{}", said.out);
    assert!(said.error.contains("rolled back, kube-scheduler runs as before"), "{}", said.error);
    assert!(machine.files() == before, "something of ours is left");
}

#[test]
fn kube_scheduler_is_asked_over_https_only() {
    let machine = Machine::new(OLD);
    let words = patch(&["200 OK"], 1).replace("https://", "http://");
    machine.refuses(&words, "kube-scheduler says how it is over https only");
}
