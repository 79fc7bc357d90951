//! The way from the host into a cluster: a port on 127.0.0.1 that leads to an address inside.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use anyhow::{Context, bail};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use crate::component::{ANCHOR, Running};
use crate::layout::Layout;
use crate::namespaces::Namespaces;

/// A port on 127.0.0.1, or any free one for 0.
pub(crate) fn listen(port: u16) -> anyhow::Result<TcpListener> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => bail!(
            "port {port} on 127.0.0.1 is in use by another program; choose another, or 0 for any free one"
        ),
        Err(error) => Err(error).with_context(|| format!("cannot listen on 127.0.0.1:{port}")),
    }
}

/// Serves `listener` until the process ends. Every connection goes to `target` in the cluster.
pub fn forward(cluster: &str, port: u16, target: SocketAddr) -> anyhow::Result<()> {
    let layout = Layout::of(cluster)?;
    let listener = listen(port)?;
    let anchor = Running::of(&layout, ANCHOR)?;
    serve(listener, &Namespaces::net_of(anchor.identity.pid)?, target)
}

/// The same on a thread, for as long as this process lives. The port is the answer.
pub(crate) fn on_thread(layout: &Layout, port: u16, target: SocketAddr) -> anyhow::Result<u16> {
    let listener = listen(port)?;
    let port = listener.local_addr()?.port();
    let anchor = Running::of(layout, ANCHOR)?;
    let namespaces = Namespaces::net_of(anchor.identity.pid)?;
    thread::Builder::new().name(format!("forward-{port}")).spawn(move || {
        // It ends with the process; that it could not begin shows at the first connection.
        let _ = serve(listener, &namespaces, target);
    })?;
    Ok(port)
}

/// The listener was made outside and stays there; what is connected from here on is inside.
fn serve(listener: TcpListener, namespaces: &Namespaces, target: SocketAddr) -> anyhow::Result<()> {
    namespaces.enter().context("cannot enter the cluster's network namespace")?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            // A connection that was given up before we took it is no reason to end.
            let Ok((mut outside, _)) = listener.accept().await else { continue };
            tokio::spawn(async move {
                if let Ok(mut inside) = TcpStream::connect(target).await {
                    let _ = outside.set_nodelay(true);
                    let _ = inside.set_nodelay(true);
                    let _ = copy_bidirectional(&mut outside, &mut inside).await;
                }
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named() {
        let taken = listen(0).unwrap();
        let port = taken.local_addr().unwrap().port();
        let message = listen(port).unwrap_err().to_string();
        assert!(message.contains(&format!("port {port} on 127.0.0.1 is in use")), "{message}");
    }
}
