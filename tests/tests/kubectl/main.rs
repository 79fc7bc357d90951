//! `kubectl nanogpu` against a real API server and nanogpu-scheduler: through a tunnel to a pod, with
//! the caller's own token, and with what annotations say when the scheduler is gone.

#[cfg(test)]
mod asking;
#[cfg(test)]
mod bed;
