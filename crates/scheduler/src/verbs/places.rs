//! Where each node stands in a snapshot, by name.
//!
//! Thousands of names come with every request, so a name is found by a hash that costs little. It
//! need not withstand names made to collide: only names of nodes are ever put in.

use std::hash::Hasher;
use std::sync::Arc;

use model::{Node, NodeName};

/// The places of nodes in a snapshot.
///
/// The names stand in one text, one after another: thousands of lookups a request are as fast as
/// memory is, and names that lie scattered would each have to be fetched.
#[derive(Debug, Default)]
pub struct Places {
    names: Arc<[NodeName]>,
    text: String,
    /// Where in `text` each name ends, by place.
    ends: Vec<usize>,
    /// Where the hash of a name points to, or at the next that was free: its place and one, else 0.
    /// A power of two, at least half of it free.
    table: Vec<u32>,
}

impl Places {
    /// The places of `nodes`.
    pub fn of(nodes: &[Arc<Node>]) -> Self {
        Self::named(nodes.iter().map(|node| node.name.clone()).collect())
    }

    fn named(names: Arc<[NodeName]>) -> Self {
        let mut places = Self {
            text: String::new(),
            ends: Vec::with_capacity(names.len()),
            table: vec![0; (2 * names.len()).next_power_of_two()],
            names,
        };
        for (place, name) in places.names.clone().iter().enumerate() {
            places.text.push_str(name.as_str());
            places.ends.push(places.text.len());
            let Ok(number) = u32::try_from(place + 1) else { break };
            let mut at = places.start(name.as_str());
            while places.table[at] != 0 {
                at = places.next(at);
            }
            places.table[at] = number;
        }
        places
    }

    /// Where the node of this name stands.
    pub fn find(&self, name: &str) -> Option<usize> {
        if self.ends.is_empty() {
            return None;
        }
        let mut at = self.start(name);
        loop {
            // Half of the table is free, so this comes to an end.
            let place = (self.table[at] as usize).checked_sub(1)?;
            if self.name(place) == name {
                return Some(place);
            }
            at = self.next(at);
        }
    }

    /// All names, by place.
    pub fn names(&self) -> &Arc<[NodeName]> {
        &self.names
    }

    fn name(&self, place: usize) -> &str {
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[place]]
    }

    fn start(&self, name: &str) -> usize {
        let mut hash = Quick::default();
        hash.write(name.as_bytes());
        // The lower bits, of which there are as many as the table has room for.
        usize::try_from(hash.finish()).unwrap_or(0) & (self.table.len() - 1)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.table.len() - 1)
    }
}

/// Eight bytes at a time: turned, mixed in, multiplied.
#[derive(Debug, Default)]
struct Quick(u64);

impl Quick {
    fn mix(&mut self, word: u64) {
        // An odd number whose bits look random; any such will do.
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
    }

    fn finish(&self) -> u64 {
        // A product's lower bits depend on lower bits only, and the table looks at these.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_where_it_stands_and_no_other() {
        for count in [0, 1, 2, 3, 64, 1000] {
            let names: Vec<String> = (0..count).map(|n| format!("node-{n:04}.rack")).collect();
            let places =
                Places::named(names.iter().map(|name| NodeName::parse(name).unwrap()).collect());
            for (place, name) in names.iter().enumerate() {
                assert_eq!(places.find(name), Some(place));
            }
            for stranger in ["", "node-", "node-0000.rac", "node-0000.rack2", "x"] {
                assert_eq!(places.find(stranger), None, "{stranger} of {count}");
            }
        }
    }
}
