//! A work queue of keys: each key at most once, never handed out twice at the same time, with timers and per-key
//! backoff.
//!
//! The queue is bounded by the number of objects, because a key that waits is not added again.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::cache::Key;

/// First delay after a failure; it doubles up to [`MAX_BACKOFF`]. These are client-go's numbers, which users know.
const BASE_BACKOFF: Duration = Duration::from_millis(5);
const MAX_BACKOFF: Duration = Duration::from_secs(1000);

#[derive(Default)]
struct State {
    ready: VecDeque<Key>,
    /// Keys in `ready`, or to be put there when the current pass ends.
    dirty: HashSet<Key>,
    processing: HashSet<Key>,
    timers: BTreeSet<(Instant, Key)>,
    timer_of: HashMap<Key, Instant>,
    failures: HashMap<Key, u32>,
    added: u64,
    retries: u64,
    closed: bool,
}

#[derive(Clone, Default)]
pub struct Queue {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

/// A key that is being reconciled. Dropping it, also by a panic, allows the key to be handed out again.
pub struct Work {
    queue: Queue,
    pub key: Key,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.queue.finish(&self.key);
    }
}

/// Numbers for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    pub depth: usize,
    pub processing: usize,
    pub added: u64,
    pub retries: u64,
}

impl Queue {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add(&self, key: Key) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        if state.wake(key) {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Adds the key after a delay. An earlier timer of the same key wins.
    pub fn add_after(&self, key: Key, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay;
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        match state.timer_of.get(&key) {
            Some(earlier) if *earlier <= at => return,
            Some(later) => {
                let later = *later;
                state.timers.remove(&(later, key.clone()));
            }
            None => {}
        }
        state.timers.insert((at, key.clone()));
        state.timer_of.insert(key, at);
        drop(state);
        self.changed.notify_one();
    }

    /// Adds the key after its backoff, or after `at_most` if that is sooner, so that errors do not delay a deadline.
    pub fn add_failed(&self, key: Key, at_most: Option<Duration>) {
        let delay = {
            let mut state = self.state.lock();
            state.retries += 1;
            let failures = state.failures.entry(key.clone()).or_default();
            let delay = backoff(*failures);
            *failures = failures.saturating_add(1);
            delay
        };
        self.add_after(key, at_most.map_or(delay, |limit| delay.min(limit)));
    }

    /// Adds every key that waits for its backoff, at once, and forgets its failures, because their cause is over.
    pub fn retry_failed(&self) {
        let mut state = self.state.lock();
        let failed = std::mem::take(&mut state.failures);
        for key in failed.into_keys() {
            if let Some(at) = state.timer_of.remove(&key) {
                state.timers.remove(&(at, key.clone()));
                state.wake(key);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Resets the backoff of the key.
    pub fn forget(&self, key: &Key) {
        self.state.lock().failures.remove(key);
    }

    /// The next key to reconcile; `None` once the queue is closed. There is one consumer per queue; it hands the work
    /// to any number of tasks.
    pub async fn next(&self) -> Option<Work> {
        loop {
            let changed = self.changed.notified();
            let wake_at = {
                let mut state = self.state.lock();
                if state.closed {
                    return None;
                }
                state.fire_timers(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.processing.insert(key.clone());
                    // The pass that is about to run sets its own timer.
                    if let Some(at) = state.timer_of.remove(&key) {
                        state.timers.remove(&(at, key.clone()));
                    }
                    return Some(Work { queue: self.clone(), key });
                }
                state.timers.first().map(|(at, _)| *at)
            };
            match wake_at {
                Some(at) => tokio::select! { () = changed => {}, () = tokio::time::sleep_until(at) => {} },
                None => changed.await,
            }
        }
    }

    /// Refuses further work and wakes the consumer.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.ready.clear();
        state.timers.clear();
        drop(state);
        self.changed.notify_one();
    }

    pub fn stats(&self) -> QueueStats {
        let state = self.state.lock();
        QueueStats {
            depth: state.ready.len(),
            processing: state.processing.len(),
            added: state.added,
            retries: state.retries,
        }
    }

    /// Whether no key is ready and no pass runs; timers may be set.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.ready.is_empty() && state.processing.is_empty() && state.dirty.is_empty()
    }

    fn finish(&self, key: &Key) {
        let mut state = self.state.lock();
        state.processing.remove(key);
        if state.dirty.contains(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.changed.notify_one();
        }
    }
}

/// The delay after this number of earlier failures.
fn backoff(failures: u32) -> Duration {
    BASE_BACKOFF.saturating_mul(2_u32.saturating_pow(failures)).min(MAX_BACKOFF)
}

impl State {
    fn fire_timers(&mut self, now: Instant) {
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.timers.pop_first() else { return };
            self.timer_of.remove(&key);
            self.wake(key);
        }
    }

    /// Marks a key as due, unless it is; returns whether it can be handed out now.
    fn wake(&mut self, key: Key) -> bool {
        if !self.dirty.insert(key.clone()) {
            return false;
        }
        self.added += 1;
        let idle = !self.processing.contains(&key);
        if idle {
            self.ready.push_back(key);
        }
        idle
    }
}

#[cfg(test)]
mod tests;
