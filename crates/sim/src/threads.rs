//! The same work on several threads, with the results of one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many CPUs there are for us.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// `work` of each of `items`, in their order, on at most `threads` threads.
///
/// Each item is worked on alone, so the results do not depend on how many threads there are.
pub fn each<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let worker = || {
        while let Some((place, item)) = {
            let place = next.fetch_add(1, Ordering::Relaxed);
            items.get(place).map(|item| (place, item))
        } {
            let result = work(item);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((place, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(worker);
        }
        worker();
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        let squares: Vec<u64> = items.iter().map(|n| n * n).collect();
        for threads in [0, 1, 3, 200] {
            assert_eq!(each(&items, threads, |n| n * n), squares, "{threads} threads");
        }
        assert!(each(&[] as &[u64], 4, |n| *n).is_empty());
    }
}
