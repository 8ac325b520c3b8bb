//! Waiting for a condition with a deadline.

use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

/// Long enough for a loaded machine; a condition that holds ends the wait at once.
const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// Repeats `look` until it gives `Ok`, and panics with the last `Err` when the deadline passes.
pub async fn eventually<T, E: Debug, F: Future<Output = Result<T, E>>>(what: &str, look: impl FnMut() -> F) -> T {
    eventually_within(DEADLINE, what, look).await
}

/// The same with a deadline of the caller's choice.
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
