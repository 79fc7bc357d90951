//! An extender that does nothing: what kube-scheduler itself spends on having one.
//!
//! It reads no more of a request than where the names of nodes are, and sends back the first, as many
//! as ours names. It binds nothing. So no extender that names as many can cost less than this.

use std::io::{BufRead as _, BufReader, Read as _, Result, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// How many nodes it names.
const NAMED: usize = 1;

/// Answers whoever connects, on threads, while the process lives.
pub(crate) fn serve(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = answer(stream);
            });
        }
    });
}

fn answer(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let (mut out, mut reader) = (stream.try_clone()?, BufReader::new(stream));
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(number) = line.strip_prefix("content-length:") {
                length = number.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body);
        let names = names(&body);
        let answer = if first.contains("/filter") {
            format!("{{\"NodeNames\":[{}]}}", foremost(names, NAMED))
        } else {
            scored(names)
        };
        let length = answer.len();
        out.write_all(
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{answer}"
            )
            .as_bytes(),
        )?;
    }
}

/// The names, quoted and with commas between: they come last in a request.
fn names(body: &str) -> &str {
    let from = body.rfind("\"NodeNames\":[").map_or(body.len(), |at| at + 13);
    let rest = &body[from..];
    &rest[..rest.find(']').unwrap_or(rest.len())]
}

/// The first so many of them.
fn foremost(names: &str, most: usize) -> &str {
    let end = names.match_indices(',').nth(most - 1).map_or(names.len(), |(at, _)| at);
    &names[..end]
}

fn scored(names: &str) -> String {
    let each = names.split(',').map(|name| format!("{{\"Host\":{name},\"Score\":0}}"));
    format!("[{}]", each.collect::<Vec<_>>().join(","))
}

#[test]
fn names_are_what_came() {
    let body = r#"{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["a","b"]}"#;
    assert_eq!(names(body), r#""a","b""#);
    assert_eq!(foremost(names(body), 1), r#""a""#);
    assert_eq!(foremost(names(body), 2), r#""a","b""#);
    assert_eq!(scored(names(body)), r#"[{"Host":"a","Score":0},{"Host":"b","Score":0}]"#);
}
