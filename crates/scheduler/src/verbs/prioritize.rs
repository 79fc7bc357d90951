//! Which of the nodes is best: 0 to 10, by rank and not by value.
//!
//! Of many nodes only the better third have points. kube-scheduler spends more time on reading a
//! thousand scores than we on finding them, and who is behind the better third cannot win by the
//! shipped weights, unless several of kube-scheduler's own scorers agree on it as far as they can.

use model::{Moment, Snapshot};
use placement::Ask;

use super::memo::Memo;
use super::offer::MANY;
use crate::state::Sent;

/// The highest score kube-scheduler knows.
const HIGHEST: u8 = 10;
/// Of many nodes those have no points who would have fewer than this.
const LOWEST_OF_MANY: u8 = 7;

/// How good nodes are.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Prioritized {
    /// A score for each that was asked about, in that order. The best alone has the highest, so that
    /// no chance decides between the best. Nodes that cannot take the pod, or that nobody knows, have 0.
    pub scores: Vec<u8>,
    /// The place of the best in the snapshot.
    pub best: Option<usize>,
}

/// How good each of `names` is. The best has room for the pod beside those that were `sent` there, if
/// any of a few has.
pub fn prioritize<S: AsRef<str>>(
    snapshot: &Snapshot,
    ask: &Ask,
    names: &[S],
    memo: &Memo,
    (sent, now): (&Sent, Moment),
) -> Prioritized {
    let places = memo.places(snapshot);
    let wanted: Vec<Option<usize>> = names.iter().map(|name| places.find(name.as_ref())).collect();
    let mut asked = vec![false; snapshot.nodes().len()];
    for &node in wanted.iter().flatten() {
        asked[node] = true;
    }
    let order = memo.order(snapshot, ask);
    let ranked = || order.iter().map(|&node| node as usize).filter(|&node| asked[node]);
    let best = sent.first(ranked(), |node| &*snapshot.nodes()[node], ask, now);
    let ranked = best.into_iter().chain(ranked().filter(|node| Some(*node) != best));
    let ranked: Vec<usize> = ranked.collect();
    let mut scores = vec![0; asked.len()];
    for (rank, &node) in ranked.iter().enumerate() {
        scores[node] = score(rank, ranked.len());
    }
    let scores = wanted.into_iter().map(|node| node.map_or(0, |node| scores[node])).collect();
    Prioritized { scores, best }
}

/// The score of the node at `place` of `count`: 10 for the first, then 9 down to 1, or of many
/// down to 7.
fn score(place: usize, count: usize) -> u8 {
    let score = full_score(place, count);
    if count > MANY && score < LOWEST_OF_MANY { 0 } else { score }
}

fn full_score(place: usize, count: usize) -> u8 {
    let (others, below) = (count.saturating_sub(1), usize::from(HIGHEST - 1));
    match place.checked_sub(1) {
        None => HIGHEST,
        Some(behind) if others <= below => HIGHEST - 1 - u8::try_from(behind).unwrap_or(8),
        Some(behind) => HIGHEST - 1 - u8::try_from(behind * below / others).unwrap_or(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_alone_has_ten_and_of_many_a_third_has_points() {
        let all = |count: usize| -> Vec<u8> { (0..count).map(|i| score(i, count)).collect() };
        assert_eq!(all(1), [10]);
        assert_eq!(all(3), [10, 9, 8]);
        assert_eq!(all(10), [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
        for count in [11, 100, 101, 5000] {
            let scores = all(count);
            assert!(scores[0] == 10 && scores[1] < 10);
            assert!(scores.is_sorted_by(|a, b| a >= b));
            assert_eq!(scores.last(), Some(&u8::from(count <= MANY)));
        }
        let with_points = all(1000).into_iter().filter(|score| *score > 0).count();
        assert_eq!(with_points, 334);
    }
}
