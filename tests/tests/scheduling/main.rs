//! nanogpu-scheduler under the real kube-scheduler, with the configuration we ship. Nodes are
//! KWOK's, with inventories of ours; everything else is what a cluster runs.

#[cfg(test)]
mod admission;
#[cfg(test)]
mod bed;
#[cfg(test)]
mod predicates;
#[cfg(test)]
mod preempting;
#[cfg(test)]
mod rounds;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod throughput;
#[cfg(test)]
mod waking;
