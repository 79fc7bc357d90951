//! nanogpu-install as a Job on a control-plane node as kubeadm sets one up: kube-scheduler is a static
//! pod, and the only scheduler of the cluster; nanogpu-scheduler is the Deployment we ship.

#[cfg(test)]
mod bed;
#[cfg(test)]
mod installing;
