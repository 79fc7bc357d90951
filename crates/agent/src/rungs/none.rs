//! Nothing is enforced: the driver as it is.

use kubelet::cdi::ContainerEdits;

use super::{Given, found_as, text};
use crate::refusal::Refusal;

#[expect(clippy::unnecessary_wraps, reason = "every rung may refuse")]
pub(super) fn equip(given: &Given<'_>, edits: &mut ContainerEdits) -> Result<(), Refusal> {
    for file in given.driver {
        let host = text(&given.driver_root.on_host(&file.path));
        edits.mounts.extend(found_as(&host, &file.name));
    }
    Ok(())
}
