//! An immutable picture of the whole cluster. Readers share it; nobody locks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::allowance::Allowance;
use crate::ids::NodeName;
use crate::node::Node;
use crate::statistics::Statistics;

/// The cluster at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    nodes: Arc<Vec<Arc<Node>>>,
    allowances: Arc<BTreeMap<String, Allowance>>,
    statistics: Arc<Statistics>,
}

impl Snapshot {
    /// A picture of `nodes` and of what each namespace may still take.
    pub fn new(mut nodes: Vec<Arc<Node>>, allowances: Arc<BTreeMap<String, Allowance>>) -> Self {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Self::sorted(nodes, allowances)
    }

    /// The same of nodes that are sorted by name: a ledger with thousands of them makes a picture
    /// at every change, of a list that it has at hand.
    pub fn sorted(
        nodes: impl Into<Arc<Vec<Arc<Node>>>>,
        allowances: Arc<BTreeMap<String, Allowance>>,
    ) -> Self {
        let nodes = nodes.into();
        debug_assert!(nodes.is_sorted_by(|a, b| a.name < b.name), "by name, and no name twice");
        Self { nodes, allowances, statistics: Arc::default() }
    }

    /// The same picture with other nodes, which are sorted by name.
    #[must_use]
    pub fn with_sorted_nodes(&self, nodes: Vec<Arc<Node>>) -> Self {
        let Self { allowances, statistics, .. } = self;
        Self::sorted(nodes, allowances.clone()).with_statistics(statistics.clone())
    }

    /// The same picture, with what was learned of the pods that come.
    #[must_use]
    pub fn with_statistics(mut self, statistics: Arc<Statistics>) -> Self {
        self.statistics = statistics;
        self
    }

    /// What was learned of the pods that come.
    pub fn statistics(&self) -> &Arc<Statistics> {
        &self.statistics
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// The node of this name.
    pub fn node(&self, name: &NodeName) -> Option<&Arc<Node>> {
        let place = self.nodes.binary_search_by(|node| node.name.cmp(name)).ok()?;
        self.nodes.get(place)
    }

    /// What `namespace` may still take; no limits if it has no quota.
    pub fn allowance(&self, namespace: &str) -> &Allowance {
        self.allowances.get(namespace).unwrap_or(Allowance::unlimited())
    }

    /// Every namespace that has a quota, with what is used and left.
    pub fn allowances(&self) -> &BTreeMap<String, Allowance> {
        &self.allowances
    }
}
