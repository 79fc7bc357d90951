//! nanogpu-agent on two real nodes of simulated cards: a kubelet, a containerd and runc each. Pods
//! are bound by the tests, with a placement of their choice; what each container got is read from
//! inside it.

#[cfg(test)]
mod bed;
#[cfg(test)]
mod devices;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod recovery;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod watching;
