//! A resource that somebody else serves.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use kubelet::devices::{Device, DeviceList, IdSet};
use kubelet::plugin::{self, Allocation, Config, DevicePlugin, Options};
use tokio::sync::watch;

use crate::bed::{Bed, SMALL};
use crate::measuring::value;

const RESOURCE: &str = "nvidia.com/vcuda-core";

/// A plugin of four devices whose names are not spelled as ours.
struct Other(watch::Sender<DeviceList>);

impl DevicePlugin for Other {
    fn options(&self) -> Options {
        Options { pre_start: false, preference: false }
    }

    fn devices(&self) -> watch::Receiver<DeviceList> {
        self.0.subscribe()
    }

    async fn allocate(&self, _: IdSet) -> Result<Allocation, kubelet::Status> {
        Ok(Allocation::default())
    }

    async fn pre_start(&self, _: IdSet) -> Result<(), kubelet::Status> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_another_plugin_serves_is_left_to_it() -> Result<()> {
    let bed = Bed::new().await?;
    let devices = DeviceList::new((0..4).map(|n| Device::healthy(format!("other-{n}"))))?;
    let folder = bed.cluster.layout().on_node(SMALL, "/var/lib/kubelet/device-plugins");
    let config = Config::new(&folder, "other.sock", RESOURCE)?;
    let other = plugin::start(config, Arc::new(Other(watch::Sender::new(devices))));
    bed.offered(SMALL, RESOURCE, 4).await?;

    // Ours is ready all the same, and serves the rest.
    let agent = bed.agent(SMALL).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    bed.offered(SMALL, RESOURCE, 4).await?;
    let label = format!("resource=\"{RESOURCE}\"");
    let watched = value(&agent.get("/metrics")?, "nanogpu_agent_plugin_watched", &[&label]);
    ensure!(watched != Some(1.0), "both serve it");
    let log = std::fs::read_to_string(bed.cluster.layout().log(&format!("nanogpu-agent-{SMALL}")))?;
    ensure!(log.contains(&format!("another plugin serves {RESOURCE}")), "nothing is said of it");
    other.stop().await;
    Ok(())
}
