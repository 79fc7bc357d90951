//! Equal questions asked at one time share one call, and no answer is older than its question.
//!
//! For each question at most one call is on its way and at most one waits for it to end. Whoever
//! asks joins the one that waits, never the one on its way: that may have been answered already,
//! from before the caller's reason to ask.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};

type Call<T> = Shared<BoxFuture<'static, T>>;

pub(super) struct Sharing<K, T: Clone> {
    table: Arc<Mutex<HashMap<K, Question<T>>>>,
}

/// Nothing in it keeps a call alive: when all who asked are gone, so is the call.
struct Question<T: Clone> {
    /// The call that has not begun.
    waiting: Option<WeakShared<BoxFuture<'static, T>>>,
    /// The last call that began or waits, which the next one has to let pass.
    last: Option<WeakShared<BoxFuture<'static, T>>>,
}

impl<K, T> Sharing<K, T>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// The answer to `question`, by a call that begins after this.
    pub(super) async fn ask<F>(&self, question: K, call: impl FnOnce(K) -> F + Send + 'static) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.join(question, call).await
    }

    fn join<F>(&self, question: K, call: impl FnOnce(K) -> F + Send + 'static) -> Call<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let upgraded = |call: &Option<WeakShared<_>>| call.as_ref().and_then(WeakShared::upgrade);
        if let Some(waiting) = table.get(&question).and_then(|asked| upgraded(&asked.waiting)) {
            return waiting;
        }
        // Whoever asked and went away left an empty entry; this is when they are swept out.
        table.retain(|_, asked| upgraded(&asked.last).is_some());
        let before = table.get(&question).and_then(|asked| upgraded(&asked.last));
        let begun = self.table.clone();
        let key = question.clone();
        let next: BoxFuture<'static, T> = Box::pin(async move {
            if let Some(before) = before {
                before.await;
            }
            // From here on newcomers need a call of their own.
            if let Some(asked) = begun.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&key)
            {
                asked.waiting = None;
            }
            call(key).await
        });
        let next = next.shared();
        let weak = next.downgrade();
        table.insert(question, Question { waiting: weak.clone(), last: weak });
        next
    }
}

impl<K, T: Clone> Default for Sharing<K, T> {
    fn default() -> Self {
        Self { table: Arc::default() }
    }
}

impl<K, T: Clone> fmt::Debug for Sharing<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharing").finish_non_exhaustive()
    }
}
