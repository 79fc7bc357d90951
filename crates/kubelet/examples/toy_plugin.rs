//! A device plugin of four devices that says what it is asked.
//!
//! `toy_plugin <folder of device plugins> <resource>`, until it is interrupted. With a third
//! argument, the registry of plugins, it is a driver of dynamic resource allocation besides.

#![expect(clippy::print_stderr, reason = "an example talks to a person")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use kubelet::devices::{Device, DeviceList, IdSet};
use kubelet::dra::{self, Claim, ClaimError, PreparedDevice};
use kubelet::plugin::{self, Allocation, Config, DevicePlugin, Options};
use tokio::sync::watch;

struct Toy(watch::Sender<DeviceList>);

impl DevicePlugin for Toy {
    fn options(&self) -> Options {
        Options { pre_start: true, preference: false }
    }

    fn devices(&self) -> watch::Receiver<DeviceList> {
        self.0.subscribe()
    }

    async fn allocate(&self, ids: IdSet) -> Result<Allocation, kubelet::Status> {
        eprintln!("allocate {ids:?}");
        Ok(Allocation { envs: [("TOY".into(), ids.digest())].into(), ..Default::default() })
    }

    async fn pre_start(&self, ids: IdSet) -> Result<(), kubelet::Status> {
        eprintln!("pre-start {ids:?}");
        Ok(())
    }
}

struct ToyDriver;

impl dra::Driver for ToyDriver {
    async fn prepare(&self, claim: Claim) -> Result<Vec<PreparedDevice>, ClaimError> {
        eprintln!("prepare {}/{}", claim.namespace, claim.name);
        Ok(Vec::new())
    }

    async fn unprepare(&self, claim: Claim) -> Result<(), ClaimError> {
        eprintln!("unprepare {}/{}", claim.namespace, claim.name);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(resource)) = (arguments.next(), arguments.next()) else {
        return Err("usage: toy_plugin <folder> <resource> [<registry>]".into());
    };
    let devices = DeviceList::new((0..4).map(|n| Device::healthy(format!("toy-{n}"))))?;
    let toy = Arc::new(Toy(watch::Sender::new(devices)));
    let running = plugin::start(Config::new(&folder, "toy.sock", resource)?, toy);
    let driver = match arguments.next() {
        Some(registry) => Some(start_driver(Path::new(&registry)).await?),
        None => None,
    };
    let mut standing = running.standing();
    // Made once: an interruption between two turns of the loop would be lost on a new one.
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let now = standing.borrow_and_update().clone();
        eprintln!("registered {} times, now {:?}", now.registrations, now.state);
        tokio::select! {
            changed = standing.changed() => changed?,
            interrupted = &mut interrupted => {
                interrupted?;
                break;
            }
        }
    }
    running.stop().await;
    if let Some(driver) = driver {
        driver.stop().await;
    }
    Ok(())
}

async fn start_driver(registry: &Path) -> Result<dra::Running, kubelet::SocketError> {
    let config = dra::Config {
        driver: "toy.example.com".into(),
        folder: registry.to_owned(),
        kubelet_folder: registry.to_owned(),
        registry: registry.to_owned(),
    };
    dra::start(&config, Arc::new(ToyDriver)).await
}
