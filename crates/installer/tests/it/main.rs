//! nanogpu-install on a made-up `/etc/kubernetes`, as the program a person runs. A kube-scheduler
//! that reads what it writes is in `tests/tests/kubeadm`.

#[cfg(test)]
mod cut_off;
#[cfg(test)]
mod made_up;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod patching;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod starting;
