//! Anywhere, but always the same anywhere for the same pod.

use model::Request;

/// A number that depends on the pod's UID and `name` and on nothing else.
pub(super) fn hash(request: &Request, name: &str) -> u64 {
    // FNV-1a, then a finaliser: names that differ in the last letter only must not stay
    // neighbours. Written out because the standard hasher may change between releases, and
    // a decision must not.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in request.pod.uid.as_str().bytes().chain([0]).chain(name.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}
