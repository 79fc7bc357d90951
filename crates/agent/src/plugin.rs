//! One device plugin for each resource that is served.

use std::sync::Arc;

use dialect::{NodeMode, Served};
use kubeapi::Told;
use kubelet::Status;
use kubelet::devices::{DeviceList, IdSet};
use kubelet::plugin::{Allocation, Declined, DevicePlugin, Options};
use kubelet::pods::PodResources;
use kubelet::wire::device_plugin::CdiDevice;
use tokio::sync::{mpsc, watch};

use crate::faults::{Point, reached};
use crate::metrics::Metrics;
use crate::probing::Way;
use crate::starting::{Refused, Starter, chain};

/// The plugin of one resource.
#[derive(Debug)]
pub struct Tickets {
    /// What is served.
    pub served: Served,
    /// The list the kubelet sees.
    pub list: watch::Sender<DeviceList>,
    /// Makes containers ready.
    pub starter: Arc<Starter>,
    /// The kind of our CDI devices.
    pub kind: kubelet::cdi::Kind,
    /// Who brings devices into a container.
    pub mode: NodeMode,
    /// Asked whether another plugin serves the resource.
    pub holdings: Option<PodResources>,
    /// Refusals, for the pods they are about.
    pub tell: mpsc::Sender<Told>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl DevicePlugin for Tickets {
    fn options(&self) -> Options {
        Options { pre_start: true, preference: false }
    }

    fn devices(&self) -> watch::Receiver<DeviceList> {
        self.list.subscribe()
    }

    /// A placeholder: a name that was never used before and never will be again.
    async fn allocate(&self, ids: IdSet) -> Result<Allocation, Status> {
        reached(Point::Allocate);
        let begin = std::time::Instant::now();
        let name = format!("{}-{:016x}", ids.digest(), fastrand::u64(..));
        self.starter.gave(self.served.resource, &ids, &name);
        let mut answer = match self.starter.way() {
            Way::Folders => {
                let mut answer = self.starter.folder(&self.served, &name, ids.len());
                answer.envs.extend(self.served.env(ids.len(), &ids.digest()));
                answer
            }
            Way::Untried | Way::Cdi | Way::Ignored | Way::Missed => {
                let name = self.kind.device(&name);
                let name = name.map_err(|error| Status::internal(error.to_string()))?;
                Allocation { cdi_devices: vec![CdiDevice { name }], ..Allocation::default() }
            }
        };
        if self.mode == NodeMode::Own {
            // From here on, so that an nvidia runtime adds nothing at any moment.
            let (name, value) = dialect::visible_devices(self.mode, &[]);
            answer.envs.insert(name, value);
        }
        reached(Point::AllocateAnswer);
        self.metrics.allocated(begin.elapsed());
        Ok(answer)
    }

    async fn pre_start(&self, ids: IdSet) -> Result<(), Status> {
        let begin = std::time::Instant::now();
        let nudge = || self.list.send_modify(|_| {});
        let started = self.starter.start(self.served.resource, &ids, &nudge).await;
        self.metrics.started(self.served.resource, started.is_ok(), begin.elapsed());
        match started {
            Ok(held) => {
                for holder in held {
                    tracing::info!(pod = %holder.pod, container = %holder.container, name = holder.name, "container made ready");
                }
                Ok(())
            }
            Err(Refused { refusal, pod }) => {
                tracing::warn!(resource = self.served.resource, %refusal, pod = pod.as_ref().map(|pod| pod.id.to_string()), "start refused");
                if let Some(pod) = pod {
                    let note = chain(&refusal);
                    let told =
                        Told { pod: pod.id.clone(), reason: "GpuRefused", note, warning: true };
                    // A queue that is full of events loses this one; the kubelet tells it too.
                    let _ = self.tell.try_send(told);
                }
                Err(Status::failed_precondition(chain(&refusal)))
            }
        }
    }

    async fn may_register(&self) -> Result<(), Declined> {
        let Some(holdings) = &self.holdings else { return Ok(()) };
        let is_ours = |id: &str| self.served.is_ours(id);
        match holdings.strangers(self.served.resource, is_ours).await {
            Ok(strangers) if strangers.is_empty() => Ok(()),
            Ok(strangers) => {
                let example = strangers.iter().next().unwrap_or_default().to_owned();
                let resource = self.served.resource;
                Err(Declined {
                    reason: format!(
                        "another plugin serves {resource} (its device {example}); remove it, or leave this dialect out"
                    ),
                })
            }
            // A kubelet that is just starting cannot say; it has no plugins yet either.
            Err(_) => Ok(()),
        }
    }
}
