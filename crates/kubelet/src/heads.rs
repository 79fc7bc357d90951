//! HTTP/2 connections of clients that call the server by a name our library refuses.
//!
//! grpc-go makes the `:authority` of what it was told to dial. Where that is a bare path, as in
//! gpu-manager's client, it has slashes (or `%2F`, in newer versions), and the HTTP/2 library below
//! tonic resets such a stream. What is served here has one method, so nothing in the head of a
//! request says anything: each is replaced by a head of ours, and all else passes as it is. The
//! client's own compression of heads ends here, because ours depends on nothing that came before.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::net::UnixStream;

/// How a connection begins.
const PREFACE: u64 = 24;
/// So much may be under way before it is taken.
const UNDER_WAY: usize = 64 * 1024;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The connection as the server is to see it: all its requests are calls of `method`.
pub(crate) fn replaced(outside: UnixStream, method: &'static str) -> DuplexStream {
    let (inside, ours) = tokio::io::duplex(UNDER_WAY);
    tokio::spawn(async move {
        let (mut asks, mut answers) = outside.into_split();
        let (mut answered, mut asked) = tokio::io::split(ours);
        let head = head(method);
        let forth = async {
            // What the client does not finish, the server need not wait for.
            let _ = carry(&mut asks, &mut asked, &head).await;
            let _ = asked.shutdown().await;
            std::future::pending::<()>().await;
        };
        // The server ends the connection, when it has answered or there is nobody any more.
        tokio::select! {
            _ = tokio::io::copy(&mut answered, &mut answers) => {}
            () = forth => {}
        }
    });
    inside
}

/// Passes frames on, heads replaced, until there are no more.
async fn carry(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    block: &[u8],
) -> io::Result<()> {
    pass(from, to, PREFACE).await?;
    loop {
        let mut frame = [0; 9];
        from.read_exact(&mut frame).await?;
        let [high, middle, low, kind, flags, stream @ ..] = frame;
        let length = u32::from_be_bytes([0, high, middle, low]).into();
        match kind {
            HEADERS => {
                pass(from, &mut tokio::io::sink(), length).await?;
                // Ours is shorter than 64 KiB, and whole.
                let [.., high, low] = block.len().to_be_bytes();
                let flags = (flags & END_STREAM) | END_HEADERS;
                to.write_all(&[0, high, low, HEADERS, flags]).await?;
                to.write_all(&stream).await?;
                to.write_all(block).await?;
            }
            CONTINUATION => pass(from, &mut tokio::io::sink(), length).await?,
            _ => {
                to.write_all(&frame).await?;
                pass(from, to, length).await?;
            }
        }
    }
}

async fn pass(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    length: u64,
) -> io::Result<()> {
    let passed = tokio::io::copy(&mut from.take(length), to).await?;
    if passed == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The head of a call: literals that are in no table, without Huffman's code.
fn head(method: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            // All of them are shorter than 127, the longest that one byte tells.
            block.push(u8::try_from(text.len()).unwrap_or(0));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}
