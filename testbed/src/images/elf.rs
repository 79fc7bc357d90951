//! What a program or library needs of others: read from the file itself, since `ldd` runs what it looks at.

use anyhow::{Context, bail};

/// The needs of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// The loader, by its path; a library and a static program name none.
    pub(super) loader: Option<String>,
    /// Libraries, by the names a loader searches for.
    pub(super) libraries: Vec<String>,
}

const HEADER: usize = 64;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const LOADER: u32 = 3;
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;

/// A part of the file that is mapped somewhere.
struct Segment {
    kind: u32,
    offset: usize,
    address: u64,
    size: usize,
}

/// Whether a file says of itself that it is a program or a library.
pub(super) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// Reads the needs of a 64-bit little-endian file, as all our platforms have.
pub(super) fn needs(bytes: &[u8]) -> anyhow::Result<Needs> {
    if !is_elf(bytes) || bytes.len() < HEADER || bytes[4..6] != [2, 1] {
        bail!("is no 64-bit program or library of Linux");
    }
    let segments = segments(bytes)?;
    let mut needs = Needs::default();
    if let Some(segment) = segments.iter().find(|segment| segment.kind == LOADER) {
        needs.loader = Some(text(bytes, segment.offset)?);
    }
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == DYNAMIC) else {
        return Ok(needs);
    };
    let table = slice(bytes, dynamic.offset, dynamic.size)?;
    let entries: Vec<(u64, u64)> =
        table.chunks_exact(16).map(|entry| (word(&entry[..8]), word(&entry[8..]))).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == STRINGS);
    let (_, address) = strings.context("has a dynamic section without strings")?;
    let strings = in_file(&segments, *address).context("has its strings nowhere in the file")?;
    for (_, place) in entries.iter().filter(|(tag, _)| *tag == NEEDED) {
        needs.libraries.push(text(bytes, strings + usize::try_from(*place)?)?);
    }
    Ok(needs)
}

fn segments(bytes: &[u8]) -> anyhow::Result<Vec<Segment>> {
    let start = usize::try_from(word(&bytes[32..40]))?;
    let (each, count) = (half(&bytes[54..56]), half(&bytes[56..58]));
    let mut found = Vec::new();
    for index in 0..count {
        let entry = slice(bytes, start + index * each, 56)?;
        found.push(Segment {
            kind: u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]),
            offset: usize::try_from(word(&entry[8..16]))?,
            address: word(&entry[16..24]),
            size: usize::try_from(word(&entry[32..40]))?,
        });
    }
    Ok(found)
}

/// Where in the file lies what is mapped at `address`.
fn in_file(segments: &[Segment], address: u64) -> Option<usize> {
    segments.iter().filter(|segment| segment.kind == LOAD).find_map(|segment| {
        let within = usize::try_from(address.checked_sub(segment.address)?).ok()?;
        (within < segment.size).then_some(segment.offset + within)
    })
}

fn slice(bytes: &[u8], start: usize, size: usize) -> anyhow::Result<&[u8]> {
    start.checked_add(size).and_then(|end| bytes.get(start..end)).context("ends too early")
}

fn text(bytes: &[u8], start: usize) -> anyhow::Result<String> {
    let rest = bytes.get(start..).context("ends too early")?;
    let end = rest.iter().position(|byte| *byte == 0).context("has a name without an end")?;
    Ok(String::from_utf8(rest[..end].to_vec())?)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn half(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) | usize::from(bytes[1]) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_needs_a_loader_and_a_c_library() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needs = needs(&own).unwrap();
        assert!(needs.libraries.iter().any(|name| name.starts_with("libc.so")), "{needs:?}");
        let loader = needs.loader.unwrap();
        assert!(std::path::Path::new(&loader).is_file(), "{loader}");
    }

    #[test]
    fn what_is_cut_short_or_something_else_is_refused() {
        assert!(needs(b"#!/bin/sh\n").unwrap_err().to_string().contains("no 64-bit program"));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in [0, 4, 63, 64, 200, 1000] {
            assert!(needs(&own[..length]).is_err(), "{length}");
        }
    }
}
