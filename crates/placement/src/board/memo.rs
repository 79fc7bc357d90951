//! What was ranked before: the keys of every question, and which nodes changed since.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use super::spec::Spec;

/// The key of a node that does not fit.
pub(crate) const REFUSED: u64 = u64::MAX;

/// How many questions are remembered. Clusters see a few hundred kinds of pods.
const MOST_MEMOS: usize = 1024;

/// So many changed nodes are put in order one by one; more are sorted together.
pub(crate) const FEW: usize = 128;

/// Nodes share a block's lowest key, so that the best of thousands is found in a few steps.
const BLOCK: usize = 64;

/// All questions asked so far.
#[derive(Debug, Default)]
pub(crate) struct Memos {
    by_hash: BTreeMap<u64, Memo>,
    /// Places that changed, in order. Memos remember how much of it they have seen.
    log: Vec<u32>,
    /// How much of the log was dropped already.
    dropped: usize,
}

/// The keys for one question.
#[derive(Debug)]
pub(crate) struct Memo {
    hash: u64,
    spec: Spec,
    keys: Vec<u64>,
    lowest: Vec<u64>,
    /// The places of those that fit, best first; nothing if nobody has asked for it, or if too
    /// much has changed since.
    order: Option<Vec<u32>>,
    /// How much of the log these keys have seen; nothing if they are not computed at all.
    seen: Option<usize>,
}

impl Memos {
    /// Forgets all keys: what they were computed from has changed.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Notes that the node at `place` changed.
    pub(crate) fn note(&mut self, place: usize) {
        self.log.push(u32::try_from(place).unwrap_or(u32::MAX));
    }

    /// The keys for `spec`, as they were the last time.
    pub(crate) fn take(&mut self, spec: &Spec, nodes: usize) -> Memo {
        // A log longer than all nodes saves nothing: drop it, and with it what is older.
        if self.log.len() > 4 * nodes.max(BLOCK) {
            self.dropped += self.log.len();
            self.log.clear();
        }
        let hash = hash(spec);
        let known = self.by_hash.remove(&hash).filter(|memo| memo.spec == *spec);
        known.unwrap_or_else(|| Memo {
            hash,
            spec: spec.clone(),
            keys: vec![REFUSED; nodes],
            lowest: vec![REFUSED; nodes.div_ceil(BLOCK)],
            order: None,
            seen: None,
        })
    }

    /// The places whose keys `memo` must compute now; nothing if all of them.
    pub(crate) fn changed(&self, memo: &Memo) -> Option<&[u32]> {
        self.log.get(memo.seen?.checked_sub(self.dropped)?..)
    }

    /// Keeps `memo` for the next time.
    pub(crate) fn put(&mut self, mut memo: Memo) {
        if self.by_hash.len() >= MOST_MEMOS {
            self.by_hash.pop_first();
        }
        memo.seen = Some(self.dropped + self.log.len());
        self.by_hash.insert(memo.hash, memo);
    }
}

impl Memo {
    /// Computes all keys.
    pub(crate) fn fill(&mut self, key: impl Fn(usize) -> u64) {
        self.order = None;
        let mut place = 0;
        for (keys, lowest) in self.keys.chunks_mut(BLOCK).zip(&mut self.lowest) {
            *lowest = REFUSED;
            for slot in keys {
                *slot = key(place);
                *lowest = (*lowest).min(*slot);
                place += 1;
            }
        }
    }

    /// Computes the key of the node at `place` anew.
    pub(crate) fn set(&mut self, place: usize, key: u64) {
        let block = place / BLOCK;
        let before = self.keys[place];
        if before == key {
            return;
        }
        self.reorder(place, before, key);
        self.keys[place] = key;
        if key <= self.lowest[block] {
            self.lowest[block] = key;
        } else if before == self.lowest[block] {
            let end = self.keys.len().min((block + 1) * BLOCK);
            let keys = &self.keys[block * BLOCK..end];
            self.lowest[block] = keys.iter().copied().min().unwrap_or(REFUSED);
        }
    }

    /// Moves the node at `place`, whose key is to change, to where it belongs then.
    fn reorder(&mut self, place: usize, before: u64, after: u64) {
        let (Some(order), Ok(number)) = (&mut self.order, u32::try_from(place)) else { return };
        let keys = &self.keys;
        let stands = |order: &[u32], key: u64| {
            order.partition_point(|&other| (keys[other as usize], other) < (key, number))
        };
        if before != REFUSED {
            let at = stands(order, before);
            if order.get(at) == Some(&number) {
                order.remove(at);
            }
        }
        if after != REFUSED {
            let at = stands(order, after);
            order.insert(at, number);
        }
    }

    /// More has changed than is worth putting in order one by one.
    pub(crate) fn disorder(&mut self) {
        self.order = None;
    }

    /// The places of those that fit, by their keys; the first of equals first.
    pub(crate) fn order(&mut self) -> &[u32] {
        let keys = &self.keys;
        self.order.get_or_insert_with(|| {
            let fits = |&place: &u32| keys[place as usize] != REFUSED;
            let all = 0..u32::try_from(keys.len()).unwrap_or(u32::MAX);
            let mut places: Vec<u32> = all.filter(fits).collect();
            places.sort_unstable_by_key(|&place| (keys[place as usize], place));
            places
        })
    }

    /// The first node with the lowest key.
    pub(crate) fn best(&self) -> Option<usize> {
        let lowest = self.lowest.iter().copied().min().filter(|key| *key != REFUSED)?;
        let block = self.lowest.iter().position(|key| *key == lowest)?;
        let from = block * BLOCK;
        self.keys[from..].iter().position(|key| *key == lowest).map(|place| from + place)
    }
}

/// Equal hashes are told apart by the question itself.
fn hash(spec: &Spec) -> u64 {
    let mut hasher = Fnv::default();
    spec.hash(&mut hasher);
    hasher.finish()
}

/// FNV-1a, a word at a time where there is one: the same in every process, and what is hashed
/// here nobody chooses to harm us.
#[derive(Debug)]
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        // A product's low bits depend on low bits only, and tables look at these.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }
}
