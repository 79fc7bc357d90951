//! gpu-manager's socket, called as its client calls it.

use std::sync::{Arc, Mutex};

use kubelet::Status;
use kubelet::vcuda::{Caller, Registers, Socket, register};
use kubelet::wire::vcuda as wire;
use prost::Message as _;

use super::http2::{Outcome, authority_of, call_with};
use super::soon;

const METHOD: &str = "/vcuda.VCUDAService/RegisterVDevice";
/// Where that client finds the socket, in a container.
const DIALLED: &str = "/etc/vcuda/vcuda.sock";

/// Remembers who called, and takes all but one.
#[derive(Default)]
struct Book(Mutex<Vec<Caller>>);

impl Registers for Book {
    async fn register(&self, caller: Caller) -> Result<(), Status> {
        if caller.pod == "another" {
            return Err(Status::permission_denied("this socket is another pod's"));
        }
        self.0.lock().unwrap().push(caller);
        Ok(())
    }
}

#[tokio::test]
async fn a_client_is_heard_by_whatever_name_it_calls_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vcuda.sock");
    let book = Arc::new(Book::default());
    let _socket = Socket::serve(&path, book.clone()).await.unwrap();
    let (pod_uid, container_id) = ("u-1".to_owned(), "4f".repeat(32));
    let asked = wire::VDeviceRequest { pod_uid, container_id, ..wire::VDeviceRequest::default() };
    let asked = asked.encode_to_vec();
    // As grpc-go 1.24 calls it, which gpu-manager has; as today's does; and as others do.
    for authority in [DIALLED, &authority_of(DIALLED), "localhost"] {
        let called = call_with(&path, METHOD, authority, &asked);
        assert_eq!(soon("an answer", called).await, Outcome::Message(vec![]), "{authority}");
    }
    let heard = std::mem::take(&mut *book.0.lock().unwrap());
    let caller = Caller { pod: "u-1".into(), id: "4f".repeat(32), ..Caller::default() };
    assert_eq!(heard, vec![caller; 3]);
}

#[tokio::test]
async fn whoever_sends_what_is_no_call_is_let_go_and_others_are_served() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vcuda.sock");
    let book = Arc::new(Book::default());
    let _socket = Socket::serve(&path, book.clone()).await.unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    // Nothing of HTTP/2; half of a frame; a frame that says it is longer than any may be; a head
    // that never ends.
    let zeros = vec![0; 70_000];
    let long = [preface, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &zeros].concat();
    let endless = [preface, &[0, 0, 0, 9, 0, 0, 0, 0, 1].repeat(1000)].concat();
    for said in
        [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[preface, b"\0\0"].concat(), &long, &endless]
    {
        let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
        // Whoever does not listen any more need not hear the end of it.
        let _ = stream.write_all(said).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = soon("the end of it", stream.read_to_end(&mut answer)).await;
    }
    let caller = Caller { pod: "u-1".into(), ..Caller::default() };
    register(&path, caller.clone()).await.unwrap();
    let other = Caller { pod: "another".into(), ..caller.clone() };
    assert_eq!(register(&path, other).await.unwrap_err().code(), kubelet::Code::PermissionDenied);
    assert_eq!(*book.0.lock().unwrap(), [caller]);
}
