//! A node that three other systems filled is taken over: their pods run on, are counted where they
//! are, and new ones fit around them. A real node of simulated cards, a real kubelet.

#[cfg(test)]
mod bed;
#[cfg(test)]
mod before;
#[cfg(test)]
#[path = "../agent/pods.rs"]
#[expect(dead_code, reason = "shared with the agent's stories, which use all of it")]
mod pods;
#[cfg(test)]
#[path = "../agent/processes.rs"]
#[expect(dead_code, reason = "shared with the agent's stories, which use all of it")]
mod processes;
#[cfg(test)]
mod taking_over;
