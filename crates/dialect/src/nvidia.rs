//! What containers and NVIDIA's own runtime agree on, whatever the dialect.

use model::Grant;

/// Who brings devices and driver files into a container on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeMode {
    /// We do; an nvidia runtime on the node must add nothing.
    #[default]
    Own,
    /// nvidia-container-toolkit does.
    Toolkit,
}

/// The variable an nvidia runtime obeys, set from Allocate on.
///
/// In [`NodeMode::Own`] it is `void`: with UUIDs in it the runtime would mount the genuine
/// driver library over the limiter.
pub fn visible_devices(mode: NodeMode, grants: &[Grant]) -> (String, String) {
    let value = match mode {
        NodeMode::Own => "void".to_owned(),
        NodeMode::Toolkit => {
            let ids: Vec<&str> = grants.iter().map(|grant| grant.device.as_str()).collect();
            ids.join(",")
        }
    };
    ("NVIDIA_VISIBLE_DEVICES".to_owned(), value)
}
