//! When to stop: SIGTERM or SIGINT once asks everything to finish what it has begun.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Whoever holds this can ask everything to stop.
#[derive(Debug, Clone)]
pub struct Shutdown {
    ask: watch::Sender<bool>,
}

/// What a task waits on beside its work.
#[derive(Debug, Clone)]
pub struct Stopping {
    asked: watch::Receiver<bool>,
}

impl Shutdown {
    /// Nothing has been asked to stop yet.
    pub fn new() -> (Self, Stopping) {
        let (ask, asked) = watch::channel(false);
        (Self { ask }, Stopping { asked })
    }

    /// Asks everything to stop.
    pub fn ask(&self) {
        self.ask.send_replace(true);
    }

    /// Waits for the first SIGTERM or SIGINT, then asks everything to stop.
    pub async fn ask_on_signal(self) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        self.ask();
        Ok(())
    }
}

impl Stopping {
    /// Whether it has been asked.
    pub fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Returns when it is asked, or when nobody is left who could.
    pub async fn asked(&mut self) {
        let _ = self.asked.wait_for(|asked| *asked).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn asking_is_heard_before_and_after() {
        let (shutdown, mut stopping) = Shutdown::new();
        assert!(!stopping.is_asked());
        let mut other = stopping.clone();
        let waiting = tokio::spawn(async move { other.asked().await });
        shutdown.ask();
        stopping.asked().await;
        waiting.await.unwrap();
        assert!(stopping.is_asked());
    }
}
