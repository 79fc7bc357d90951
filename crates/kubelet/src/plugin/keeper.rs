//! Keeps a plugin registered: the one task that makes its socket and talks to the kubelet.
//!
//! It compares what is with what should be, and acts on the difference. Whatever wakes it (the
//! folder, the end of a stream, a poll) is only a reason to look, so that no order of events can
//! confuse it: two restarts of the kubelet within a second are one difference or two.
//!
//! Two habits of the kubelet shape it:
//!
//! - When a stream of the device list ends, the kubelet drops whatever plugin has that resource at
//!   that moment, be it a newer one. So old streams end before a registration, never after, and if
//!   the kubelet still drops us, the end of the new stream is a reason to register again.
//! - A registration while an old stream lives leaves the kubelet reading both for ever. So nothing is
//!   registered again without need: only for another `kubelet.sock`, another socket of ours, or the
//!   end of the last stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Endpoint;
use tracing::{info, warn};

use super::{Config, DevicePlugin, RegisterError, Standing, State, service};
use crate::folder::{Folder, Heard};
use crate::serve::Serving;
use crate::socket::Identity;
use crate::wire::device_plugin as wire;
use wire::registration_client::RegistrationClient;

/// The version of the API that is spoken.
const VERSION: &str = "v1beta1";

/// While it registers us the kubelet calls back, and gives that ten seconds.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);

/// The kubelet asks for the devices right after it accepted a plugin.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Serves and registers until `stopped`.
pub(super) async fn keep<P: DevicePlugin>(
    config: Config,
    plugin: Arc<P>,
    standing: watch::Sender<Standing>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut folder =
        Folder::watch(&config.folder, &[super::KUBELET_SOCKET, &config.socket], config.poll);
    let mut keeper = Keeper { config, plugin, standing, served: None, known_to: None };
    let mut pause = SHORTEST_PAUSE;
    loop {
        let look_again = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => break,
            outcome = keeper.settle() => match outcome {
                Ok(deadline) => {
                    pause = SHORTEST_PAUSE;
                    deadline
                }
                Err(error) => {
                    keeper.waits(error);
                    let at = Instant::now() + pause;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    Some(at)
                }
            },
        };
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            heard = folder.changed() => if heard == Heard::Event {
                pause = SHORTEST_PAUSE;
            },
            () = keeper.stream_turns() => {}
            () = sleep_until(look_again) => {}
        }
    }
    keeper.stop().await;
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct Keeper<P> {
    config: Config,
    plugin: Arc<P>,
    standing: watch::Sender<Standing>,
    served: Option<Served>,
    /// The kubelet that accepted the socket that is served now, and how far it is.
    known_to: Option<Acquaintance>,
}

struct Served {
    serving: Serving,
    /// How many readers the device list has.
    streams: watch::Receiver<usize>,
}

struct Acquaintance {
    kubelet: Identity,
    since: Instant,
    /// Whether it has asked for the devices.
    watched: bool,
}

/// How it goes with a kubelet.
enum Outlook {
    /// It reads our devices.
    Settled,
    /// It accepted us, and has until then to ask for them.
    Until(Instant),
    /// It does not know us, or no more.
    Over,
}

impl<P: DevicePlugin> Keeper<P> {
    /// Does what is missing. Says when to look again although nothing happened, if ever.
    async fn settle(&mut self) -> Result<Option<Instant>, RegisterError> {
        if !self.served.as_ref().is_some_and(|served| served.serving.in_place()) {
            self.serve_anew().await?;
        }
        let kubelet_path = self.config.kubelet_path();
        let Some(kubelet) = Identity::of(&kubelet_path) else {
            self.known_to = None;
            return Err(RegisterError::NoKubelet { path: kubelet_path });
        };
        match self.follow_up(kubelet)? {
            Outlook::Settled => Ok(None),
            Outlook::Until(deadline) => Ok(Some(deadline)),
            Outlook::Over => {
                if self.served.as_ref().is_none_or(|served| *served.streams.borrow() > 0) {
                    self.serve_anew().await?;
                }
                let overtaken = self.overtaken(kubelet);
                tokio::select! {
                    outcome = self.register(kubelet) => outcome.map(Some),
                    () = overtaken => Ok(Some(Instant::now())),
                }
            }
        }
    }

    /// Returns when `kubelet` or the socket we serve is no longer the one at its path.
    ///
    /// A kubelet that starts removes our socket. If it did so while we were about to register, it
    /// would dial a socket that is not there, for its full ten seconds.
    fn overtaken(&self, kubelet: Identity) -> impl Future<Output = ()> + use<P> {
        let (theirs, ours) = (self.config.kubelet_path(), self.config.socket_path());
        let served = Identity::of(&ours);
        async move {
            while served.is_some()
                && Identity::of(&ours) == served
                && Identity::of(&theirs) == Some(kubelet)
            {
                tokio::time::sleep(SHORTEST_PAUSE).await;
            }
        }
    }

    /// How it goes with the kubelet that accepted us.
    fn follow_up(&mut self, kubelet: Identity) -> Result<Outlook, RegisterError> {
        let open = self.served.as_ref().is_some_and(|served| *served.streams.borrow() > 0);
        let Some(known) = self.known_to.as_mut().filter(|known| known.kubelet == kubelet) else {
            return Ok(Outlook::Over);
        };
        if open {
            if !known.watched {
                known.watched = true;
                self.publish(State::Watched);
            }
            return Ok(Outlook::Settled);
        }
        let deadline = known.since + STREAM_TIMEOUT;
        if !known.watched && Instant::now() < deadline {
            return Ok(Outlook::Until(deadline));
        }
        let watched = known.watched;
        self.known_to = None;
        if watched {
            // The stream ended: the kubelet is stopping, or has dropped us.
            return Ok(Outlook::Over);
        }
        Err(RegisterError::NotWatched { resource: self.config.resource.clone() })
    }

    async fn register(&mut self, kubelet: Identity) -> Result<Instant, RegisterError> {
        self.known_to = None;
        let resource = self.config.resource.clone();
        if let Err(source) = self.plugin.may_register().await {
            return Err(RegisterError::Declined { resource, source });
        }
        let path = self.config.kubelet_path();
        let unreachable = |source| RegisterError::Unreachable { path: path.clone(), source };
        let channel = Endpoint::from_shared(format!("unix://{}", path.display()))
            .map_err(unreachable)?
            .timeout(REGISTER_TIMEOUT)
            .connect()
            .await
            .map_err(unreachable)?;
        let request = wire::RegisterRequest {
            version: VERSION.into(),
            endpoint: self.config.socket.clone(),
            resource_name: resource.clone(),
            options: Some(service::to_wire(self.plugin.options())),
        };
        RegistrationClient::new(channel)
            .register(request)
            .await
            .map_err(|status| RegisterError::Refused { resource, status })?;
        let since = Instant::now();
        self.known_to = Some(Acquaintance { kubelet, since, watched: false });
        info!(resource = %self.config.resource, socket = %self.config.socket, "registered");
        self.standing.send_modify(|standing| {
            standing.registrations += 1;
            standing.state = State::Registered;
        });
        Ok(since + STREAM_TIMEOUT)
    }

    /// Ends what is served, with its streams, and serves on a new socket.
    async fn serve_anew(&mut self) -> Result<(), RegisterError> {
        self.known_to = None;
        self.end_served().await;
        let end = watch::Sender::new(false);
        let (router, streams) = service::router(self.plugin.clone(), end.subscribe());
        let serving = Serving::start(&self.config.socket_path(), router, end).await?;
        self.served = Some(Served { serving, streams });
        Ok(())
    }

    async fn end_served(&mut self) {
        if let Some(served) = self.served.take() {
            served.serving.end().await;
        }
    }

    /// Returns when a stream opens or ends.
    async fn stream_turns(&mut self) {
        if let Some(served) = &mut self.served
            && served.streams.changed().await.is_ok()
        {
            return;
        }
        // Nothing is served; the folder or the pause wakes us.
        std::future::pending::<()>().await;
    }

    fn waits(&self, error: RegisterError) {
        let resource = &self.config.resource;
        // A state that lasts is told once, not at every try.
        let text = error.to_string();
        let told = matches!(&self.standing.borrow().state,
            State::Waiting(before) if before.to_string() == text);
        if !told {
            warn!(%resource, error = %chain(&error), "not registered");
            self.publish(State::Waiting(Arc::new(error)));
        }
    }

    fn publish(&self, state: State) {
        self.standing.send_modify(|standing| standing.state = state);
    }

    async fn stop(mut self) {
        self.end_served().await;
        self.publish(State::Stopped);
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
