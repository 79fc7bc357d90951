//! nanogpu-agent on three real nodes of simulated cards: a kubelet, a containerd and runc each. Most
//! pods are bound by the tests, with a placement of their choice, those of `scheduled.rs` by our own
//! scheduler; what each container got is read from inside it.

#[cfg(test)]
mod bed;
#[cfg(test)]
mod changing;
#[cfg(test)]
mod costing;
#[cfg(test)]
mod deploying;
#[cfg(test)]
mod devices;
#[cfg(test)]
mod driver;
#[cfg(test)]
mod folders;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod limiting;
#[cfg(test)]
mod measuring;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod rebooting;
#[cfg(test)]
mod recovery;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod scheduled;
#[cfg(test)]
mod seeing;
#[cfg(test)]
mod toolkit;
#[cfg(test)]
mod vcuda;
#[cfg(test)]
mod watching;
