//! Sends many writes in batches of 1, 2, 4, …, so that a quota or a broken template fails one write and not hundreds.

use futures::{StreamExt, future::join_all, stream};

/// Maximum number of requests of one pool in flight.
const CONCURRENCY: usize = 64;

/// The result of a run of batches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run<T, E> {
    pub done: Vec<T>,
    /// The first error of the batch that had one; no batch follows it.
    pub error: Option<E>,
    /// Number of items that were not attempted.
    pub left: usize,
}

/// Calls `act` for each item, in doubling batches; stops after a batch with a failure.
pub(super) async fn slow_start<I, T, E, F, Fut>(items: Vec<I>, act: F) -> Run<T, E>
where
    F: Fn(I) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut run = Run { done: Vec::with_capacity(items.len()), error: None, left: items.len() };
    let mut items = items.into_iter();
    let mut size = 1;
    while run.left > 0 && run.error.is_none() {
        let batch: Vec<I> = items.by_ref().take(size).collect();
        run.left -= batch.len();
        let responses: Vec<Result<T, E>> = if batch.len() <= CONCURRENCY {
            join_all(batch.into_iter().map(&act)).await
        } else {
            stream::iter(batch.into_iter().map(&act)).buffer_unordered(CONCURRENCY).collect().await
        };
        for response in responses {
            match response {
                Ok(value) => run.done.push(value),
                Err(error) => run.error = run.error.take().or(Some(error)),
            }
        }
        size *= 2;
    }
    run
}
