//! One key at a time, no key lost, timers and back-off.

use futures::FutureExt;

use super::*;

fn key(name: &str) -> Key {
    Key::new("n", name)
}

fn ready(queue: &Queue) -> Option<Work> {
    queue.next().now_or_never().flatten()
}

#[tokio::test]
async fn a_waiting_key_is_not_added_twice() {
    let queue = Queue::new();
    for _ in 0..3 {
        queue.add(key("a"));
    }
    let work = ready(&queue).expect("one");
    assert_eq!(work.key, key("a"));
    assert!(ready(&queue).is_none());
}

#[tokio::test]
async fn a_key_under_work_waits_for_its_end() {
    let queue = Queue::new();
    queue.add(key("a"));
    let work = ready(&queue).expect("one");
    queue.add(key("a"));
    assert!(ready(&queue).is_none(), "never two passes of one object");
    drop(work);
    assert!(ready(&queue).is_some(), "and the wake-up is not lost");
    assert!(ready(&queue).is_none());
}

/// Long enough to tell from a timer that fires in milliseconds, short enough for a test.
const NEVER: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn the_earlier_of_two_timers_wins() {
    let queue = Queue::new();
    queue.add_after(key("a"), NEVER);
    queue.add_after(key("a"), Duration::from_millis(20));
    queue.add_after(key("a"), NEVER);
    let before = Instant::now();
    drop(queue.next().await.expect("fires"));
    assert!(before.elapsed() >= Duration::from_millis(20));
    assert!(queue.state.lock().timers.is_empty(), "a key has one timer");
}

#[tokio::test]
async fn an_earlier_pass_replaces_the_timer() {
    let queue = Queue::new();
    queue.add_after(key("a"), NEVER);
    queue.add(key("a"));
    drop(queue.next().await.expect("at once"));
    assert!(queue.state.lock().timers.is_empty(), "the pass decides when to look again");
}

#[test]
fn back_off_doubles_up_to_a_limit() {
    assert_eq!([0, 1, 2, 3].map(|failures| backoff(failures).as_millis()), [5, 10, 20, 40]);
    assert_eq!(backoff(18), Duration::from_secs(1000));
    assert_eq!(backoff(u32::MAX), Duration::from_secs(1000));
}

#[tokio::test]
async fn success_forgets_failures_and_a_deadline_outlives_them() {
    let queue = Queue::new();
    let due = |queue: &Queue| queue.state.lock().timer_of[&key("a")].duration_since(Instant::now());
    for _ in 0..30 {
        queue.state.lock().failures.entry(key("a")).and_modify(|failures| *failures += 1).or_insert(1);
    }
    queue.add_failed(key("a"), None);
    assert!(due(&queue) > Duration::from_secs(990));
    queue.add_failed(key("a"), Some(Duration::from_secs(3)));
    assert!(due(&queue) <= Duration::from_secs(3));
    queue.forget(&key("a"));
    queue.add_failed(key("a"), None);
    assert!(due(&queue) <= Duration::from_millis(5));
}

#[tokio::test]
async fn closing_ends_the_wait() {
    let queue = Queue::new();
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next().await.is_none() }
    });
    tokio::task::yield_now().await;
    queue.close();
    assert!(waiter.await.expect("ends"));
    queue.add(key("a"));
    assert!(ready(&queue).is_none());
}

#[tokio::test]
async fn a_panicking_pass_frees_its_key() {
    let queue = Queue::new();
    queue.add(key("a"));
    let work = ready(&queue).expect("one");
    let panicked = tokio::spawn(async move {
        let _work = work;
        panic!("as a bug would");
    });
    assert!(panicked.await.is_err());
    queue.add(key("a"));
    assert!(ready(&queue).is_some());
}

/// After an outage no key waits for a backoff that grew meanwhile; a timer of its own is left alone.
#[tokio::test]
async fn retry_failed_wakes_failed_keys_only() {
    let queue = Queue::new();
    for name in ["failed", "scheduled"] {
        queue.add(key(name));
        drop(ready(&queue).expect("one"));
    }
    for _ in 0..40 {
        queue.add_failed(key("failed"), None);
        queue.state.lock().fire_timers(Instant::now() + MAX_BACKOFF);
        drop(ready(&queue).expect("the timer fired"));
    }
    queue.add_failed(key("failed"), None);
    queue.add_after(key("scheduled"), NEVER);
    assert!(ready(&queue).is_none(), "backed off for {MAX_BACKOFF:?}");
    queue.retry_failed();
    assert_eq!(ready(&queue).expect("woken").key, key("failed"));
    assert!(ready(&queue).is_none());
    let before = Instant::now();
    queue.add_failed(key("failed"), None);
    assert_eq!(queue.next().await.expect("soon").key, key("failed"));
    assert!(before.elapsed() < MAX_BACKOFF, "failures are forgotten");
}
