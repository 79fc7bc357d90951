//! nanogpu-scheduler under the real kube-scheduler, with the configuration we ship. Nodes are
//! KWOK's, with inventories of ours; everything else is what a cluster runs.

#[cfg(test)]
mod admission;
#[cfg(test)]
mod bed;
#[cfg(test)]
mod clock;
#[cfg(test)]
mod deployed;
#[cfg(test)]
mod load;
#[cfg(test)]
mod mutual;
#[cfg(test)]
mod nothing;
#[cfg(test)]
mod predicates;
#[cfg(test)]
mod preempting;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod rounds;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod size;
#[cfg(test)]
mod stopping;
#[cfg(test)]
mod throughput;
#[cfg(test)]
mod waking;
