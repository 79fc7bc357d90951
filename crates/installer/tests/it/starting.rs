//! nanogpu-scheduler that does not answer at once is asked again.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use crate::made_up::{Machine, OLD};

/// Plays kube-scheduler, which is always well, and nanogpu-scheduler, which gives these answers, and
/// then the last one for ever. Where they are.
fn answering(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut verbs = answers.iter().chain(std::iter::repeat(answers.last().unwrap()));
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut question = [0; 4096];
            let read = stream.read(&mut question).unwrap();
            let health = question[..read].starts_with(b"GET /healthz");
            let status = if health { "200 OK" } else { verbs.next().unwrap() };
            let body = if status.starts_with("200") { "ok" } else { "no first sync yet" };
            let _ =
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    format!("http://{address}")
}

fn words(at: &str, within: u64) -> String {
    format!(
        "patch --extender {at}/scheduler --verify-url {at}/healthz --within {within} --steady 0"
    )
}

const LATE: &str = "503 Service Unavailable";

#[test]
fn one_that_is_late_is_waited_for_before_and_after() {
    let machine = Machine::new(OLD);
    let at = answering(&[LATE, "200 OK", LATE, LATE, "200 OK"]);
    let said = machine.run(&words(&at, 20));
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.error);
    let late = "is not ready: 503 no first sync yet; asked again for 20 seconds.";
    assert_eq!(said.out.matches(late).count(), 2, "{}", said.out);
    assert!(said.out.contains("kube-scheduler runs with nanogpu"), "{}", said.out);
    assert!(machine.run("status").out.starts_with("patched"));
}

#[test]
fn one_that_never_comes_is_given_up() {
    let machine = Machine::new(OLD);
    let at = answering(&[LATE]);
    machine.refuses(&words(&at, 1), "is not ready: 503 no first sync yet (asked for 1 seconds)");
}

#[test]
fn one_that_goes_away_meanwhile_is_taken_out_again() {
    let machine = Machine::new(OLD);
    let before = machine.files();
    let at = answering(&["200 OK", LATE]);
    let said = machine.run(&words(&at, 1));
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.error);
    assert!(said.out.contains("Rolling back."), "{}", said.out);
    assert!(said.error.contains("rolled back, kube-scheduler runs as before"), "{}", said.error);
    assert!(machine.files() == before, "something of ours is left");
}
