//! A bounded cache of review results with an expiry per entry. Concurrent lookups of one key share a single call.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Digest of what was reviewed: tokens and user names themselves are not kept.
pub(super) type Key = [u8; 32];

struct Entry<V> {
    value: V,
    expires: Instant,
    last_used: u64,
}

struct Entries<V> {
    by_key: HashMap<Key, Entry<V>>,
    /// Counts lookups; orders entries by their last use.
    lookups: u64,
}

/// Results of reviews by key.
pub(super) struct ReviewCache<V> {
    capacity: usize,
    entries: Mutex<Entries<V>>,
    /// One lock per key under review, so that a burst of requests makes one call.
    calls: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

impl<V: Clone> ReviewCache<V> {
    pub(super) fn new(capacity: usize) -> Self {
        let entries = Mutex::new(Entries { by_key: HashMap::new(), lookups: 0 });
        Self { capacity, entries, calls: Mutex::default() }
    }

    /// The cached value of `key`, else what `review` returns; that is kept for the duration returned with it.
    pub(super) async fn get_or_review(&self, key: Key, review: impl Future<Output = (V, Duration)>) -> V {
        if let Some(value) = self.get(&key) {
            return value;
        }
        let call = Call { calls: &self.calls, key, lock: Arc::clone(self.calls.lock().entry(key).or_default()) };
        let _turn = call.lock.lock().await;
        match self.get(&key) {
            Some(value) => value,
            None => {
                let (value, ttl) = review.await;
                self.insert(key, value.clone(), ttl);
                value
            }
        }
    }

    fn get(&self, key: &Key) -> Option<V> {
        let mut entries = self.entries.lock();
        entries.lookups += 1;
        let lookups = entries.lookups;
        let entry = entries.by_key.get_mut(key)?;
        if Instant::now() >= entry.expires {
            entries.by_key.remove(key);
            return None;
        }
        entry.last_used = lookups;
        Some(entry.value.clone())
    }

    fn insert(&self, key: Key, value: V, ttl: Duration) {
        let mut entries = self.entries.lock();
        entries.lookups += 1;
        let last_used = entries.lookups;
        if entries.by_key.len() >= self.capacity {
            entries.evict();
        }
        entries.by_key.insert(key, Entry { value, expires: Instant::now() + ttl, last_used });
    }
}

/// A review under way. Its lock is removed when it ends, also when the client disconnects and the request is dropped.
struct Call<'a> {
    calls: &'a Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>,
    key: Key,
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.key);
    }
}

impl<V> Entries<V> {
    /// Removes expired entries; if there are none, the least recently used tenth, so that one scan serves many inserts.
    fn evict(&mut self) {
        let now = Instant::now();
        let before = self.by_key.len();
        self.by_key.retain(|_, entry| now < entry.expires);
        if self.by_key.len() == before {
            let mut ages: Vec<u64> = self.by_key.values().map(|entry| entry.last_used).collect();
            let (_, oldest_kept, _) = ages.select_nth_unstable(before / 10);
            let oldest_kept = *oldest_kept;
            self.by_key.retain(|_, entry| entry.last_used > oldest_kept);
        }
    }
}
