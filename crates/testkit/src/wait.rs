//! Waiting for a condition with a deadline.

use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

/// Default deadline: long enough for a loaded machine. The wait ends as soon as the condition holds.
const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `look` repeatedly until it returns `Ok`, and panics with the last `Err` when the deadline passes.
pub async fn eventually<T, E: Debug, F: Future<Output = Result<T, E>>>(what: &str, look: impl FnMut() -> F) -> T {
    eventually_within(DEADLINE, what, look).await
}

/// Like [`eventually`] with a given deadline.
#[expect(clippy::panic, reason = "a test helper fails the test")]
pub async fn eventually_within<T, E: Debug, F: Future<Output = Result<T, E>>>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(last) if Instant::now() >= deadline => panic!("{what}: not within {limit:?}; last seen: {last:#?}"),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
