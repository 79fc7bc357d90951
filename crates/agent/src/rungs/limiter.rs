//! Our library under the names of the driver's two, and the genuine ones at a private path.
//!
//! Mounted as `libcuda.so.1` and `libnvidia-ml.so.1` it is what every loader finds, whatever the
//! environment says. A read-only `/etc/ld.so.preload` is the second line, for images that bring a
//! libcuda of their own.

use kubelet::cdi::{ContainerEdits, Mount};

use super::{Given, found_as, text};
use crate::refusal::Refusal;

/// The libraries our library stands in for.
const REPLACED: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];
/// Where containers see what is ours.
const PRIVATE: &str = "/usr/local/nanogpu";
/// The file of our library.
pub(crate) const LIBRARY: &str = "libnanogpu.so";
/// Says to the loader: this library first. The file lies with the container's pages.
pub(crate) const PRELOAD: &str = "ld.so.preload";
/// What it says.
pub(crate) const PRELOADED: &str = "/usr/local/nanogpu/libnanogpu.so\n";

pub(super) fn equip(given: &Given<'_>, edits: &mut ContainerEdits) -> Result<(), Refusal> {
    let here = given.limiter.here.join(LIBRARY);
    if !here.is_file() {
        return Err(Refusal::NoLimiter { path: here });
    }
    let library = text(&given.limiter.host.join(LIBRARY));
    let mut replaced = 0;
    for file in given.driver {
        let host = text(&given.driver_root.on_host(&file.path));
        if REPLACED.contains(&file.name.as_str()) {
            replaced += 1;
            edits.mounts.push(Mount::read_only(host, format!("{PRIVATE}/driver/{}", file.name)));
            edits.mounts.extend(found_as(&library, &file.name));
        } else if !is_version_of_replaced(&file.name) {
            edits.mounts.extend(found_as(&host, &file.name));
        }
    }
    // With one of the two genuine, the limit would be a suggestion.
    if replaced < REPLACED.len() {
        return Err(Refusal::NoDriverFile { what: "libcuda.so.1 and libnvidia-ml.so.1" });
    }
    edits.mounts.push(Mount::read_only(&library, format!("{PRIVATE}/{LIBRARY}")));
    let preload = format!("{}/{PRELOAD}", given.pages);
    edits.mounts.push(Mount::read_only(preload, format!("/etc/{PRELOAD}")));
    for (place, _) in given.grants.iter().enumerate() {
        let limits = format!("{}/{place}.limits", given.pages);
        edits.mounts.push(Mount::read_only(limits, format!("{PRIVATE}/pages/{place}.limits")));
        let door = format!("{}/{place}.door", given.pages);
        edits.mounts.push(Mount::read_only(door, format!("{PRIVATE}/pages/{place}.door")));
        let counters = format!("{}/{place}.counters", given.pages);
        let mut counters = Mount::read_only(counters, format!("{PRIVATE}/pages/{place}.counters"));
        counters.options.retain(|option| option != "ro");
        counters.options.extend(["rw".to_owned(), "noexec".to_owned()]);
        edits.mounts.push(counters);
    }
    Ok(())
}

/// Where a container with so many shares sees what is ours, and whether it is read-only.
pub(super) fn places(cards: usize) -> Vec<(String, bool)> {
    let mut places: Vec<_> =
        REPLACED.iter().map(|name| (format!("{PRIVATE}/driver/{name}"), true)).collect();
    places.push((format!("{PRIVATE}/{LIBRARY}"), true));
    places.push((format!("/etc/{PRELOAD}"), true));
    for place in 0..cards {
        for (file, read_only) in [("limits", true), ("door", true), ("counters", false)] {
            places.push((format!("{PRIVATE}/pages/{place}.{file}"), read_only));
        }
    }
    places
}

/// The genuine library under its versioned name would be found by who looks for it.
fn is_version_of_replaced(name: &str) -> bool {
    REPLACED.iter().any(|replaced| {
        let stem = replaced.trim_end_matches('1');
        name.strip_prefix(stem).is_some_and(|version| version != "1")
    })
}
