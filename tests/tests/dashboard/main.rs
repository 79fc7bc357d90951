//! The dashboard in a real browser: a Chromium without a screen, driven from outside, before a
//! nanogpu-scheduler under the real kube-scheduler, and on the cluster of the demo.

#[cfg(test)]
#[path = "../scheduling/bed.rs"]
#[expect(dead_code, reason = "shared with the stories of scheduling, which use more of it")]
mod bed;
#[cfg(test)]
mod browser;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod page;
