//! One gRPC call in hand-made HTTP/2 frames, because no client library sends what grpc-go sends.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// How a call ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// With a message.
    Message(Vec<u8>),
    /// The server reset the stream with this code.
    Reset(u32),
}

/// Code of a stream that broke the protocol.
pub(crate) const PROTOCOL_ERROR: u32 = 1;

/// The `:authority` that grpc-go makes of a target: what may not stand in a host is escaped.
pub(crate) fn authority_of(target: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte);
    target
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

/// Calls `method` with an empty message on the socket at `path`, under `authority`.
pub(crate) async fn call(path: &Path, method: &str, authority: &str) -> Outcome {
    call_with(path, method, authority, &[]).await
}

/// The same with a message.
pub(crate) async fn call_with(
    path: &Path,
    method: &str,
    authority: &str,
    message: &[u8],
) -> Outcome {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal that is not indexed, with a new name, and no Huffman coding.
        headers.push(0);
        for text in [name, value] {
            let length = u8::try_from(text.len()).unwrap();
            assert!(length < 127, "a longer text needs another form");
            headers.push(length);
            headers.extend_from_slice(text.as_bytes());
        }
    }
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, &headers)).await.unwrap();
    // Not compressed, and how long it is.
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let message = [&[0], &length[..], message].concat();
    stream.write_all(&frame(DATA, END_STREAM, 1, &message)).await.unwrap();
    loop {
        let (kind, stream_id, payload) = read_frame(&mut stream).await;
        match (kind, stream_id) {
            // Five bytes say whether it is compressed, and how long it is.
            (DATA, 1) => return Outcome::Message(payload[5..].to_vec()),
            (RST_STREAM, 1) => {
                return Outcome::Reset(u32::from_be_bytes(payload.try_into().unwrap()));
            }
            _ => {}
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

async fn read_frame(stream: &mut UnixStream) -> (u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await.unwrap();
    (head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload)
}
