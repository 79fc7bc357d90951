//! In which order pods come, and how many.

use crate::trace::TracePod;

/// In which order the pods of a trace come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// By chance.
    Shuffled,
    /// As they stand in the file.
    Trace,
    /// As they stand in the file, and the nodes too.
    Given,
}

impl Order {
    /// The name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shuffled => "shuffled",
            Self::Trace => "trace",
            Self::Given => "given",
        }
    }
}

/// Which pods of `pods` come, one after the other, until their demand reaches `percent` of
/// `capacity` thousandths of a card. A list that ends before goes on with pods drawn from it.
pub fn arrivals(
    pods: &[TracePod],
    order: Order,
    capacity: u64,
    percent: u64,
    rng: &mut fastrand::Rng,
) -> Vec<usize> {
    let mut order_of_pods: Vec<usize> = (0..pods.len()).collect();
    if order == Order::Shuffled {
        order_of_pods.sort_by(|&a, &b| pods[a].request.pod.name.cmp(&pods[b].request.pod.name));
        rng.shuffle(&mut order_of_pods);
    }
    let goal = capacity * percent / 100;
    let mut come = Vec::new();
    let mut demand = 0;
    let mut listed = order_of_pods.into_iter();
    let asks_anything = pods.iter().any(|pod| pod.milli > 0);
    while demand < goal && asks_anything {
        let next = listed.next().unwrap_or_else(|| rng.usize(..pods.len()));
        demand += pods[next].milli;
        come.push(next);
    }
    come
}
