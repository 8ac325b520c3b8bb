//! Idempotency keys: a repeated request gets the first result instead of running its command twice.
//!
//! A key is valid only together with the boot id it was made for, so that a key from before a restart never runs a
//! command again. Results are kept for a while and the keys of evicted results longer. When there are too many evicted
//! keys the boot id changes, and keys of the boot id before the previous one become unknown. So memory is bounded and
//! no command runs twice.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent_sandbox_protocol::native::{BOOT_ID_HEADER, ErrorCode, IDEMPOTENCY_KEY_HEADER};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::error::ApiError;

/// Maximum number, age and size of kept results.
const MAX_RESULTS: usize = 1024;
const RESULT_RETENTION: Duration = Duration::from_secs(3600);
const MAX_RESULT_BYTES: usize = 1 << 20;
/// Maximum size of all kept results together.
const MAX_TOTAL_BYTES: usize = 16 << 20;
/// Maximum number of keys of evicted results, in each of two generations.
const MAX_EVICTED_KEYS: usize = 65_536;
const MAX_KEY: usize = 255;

/// The response to a finished request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredResponse {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// What a request with a key has to do.
#[derive(Debug)]
pub(super) enum Reservation {
    /// The key is new: run the command, then record its response.
    Run(InFlight),
    /// The key is in use or was used: wait for the recorded response.
    Wait(watch::Receiver<Option<StoredResponse>>),
}

/// The idempotency keys of one boot.
#[derive(Debug)]
pub struct IdempotencyKeys {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug)]
struct Table {
    boot: String,
    epoch: u64,
    results: HashMap<u128, Entry>,
    order: VecDeque<(u128, Instant)>,
    /// Keys evicted under the current boot id and under the previous one.
    evicted: [HashSet<u128>; 2],
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    fingerprint: u128,
    response: watch::Sender<Option<StoredResponse>>,
}

/// Permission to run the command of a key. Dropping it without a response leaves the outcome of the key unknown.
#[derive(Debug)]
pub(super) struct InFlight {
    table: Arc<Mutex<Table>>,
    key: u128,
    done: bool,
}

impl Default for IdempotencyKeys {
    fn default() -> Self {
        Self::new()
    }
}

impl IdempotencyKeys {
    /// An empty table with a new boot id.
    pub fn new() -> Self {
        let boot = format!("{:016x}{:016x}", crate::core::random::number(), crate::core::random::number());
        let table = Table {
            boot,
            epoch: 0,
            results: HashMap::new(),
            order: VecDeque::new(),
            evicted: Default::default(),
            bytes: 0,
        };
        Self { table: Arc::new(Mutex::new(table)) }
    }

    pub fn boot_id(&self) -> String {
        lock(&self.table).boot_id()
    }

    /// Reserves the key in `headers`; `None` if there is none.
    pub(super) fn reserve(&self, headers: &HeaderMap, request: &[u8]) -> Result<Option<Reservation>, ApiError> {
        let Some(key) = headers.get(IDEMPOTENCY_KEY_HEADER) else { return Ok(None) };
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(ApiError::invalid(format!("the idempotency key must have 1 to {MAX_KEY} characters")));
        }
        let boot = headers.get(BOOT_ID_HEADER).ok_or_else(|| {
            ApiError::invalid(format!("an idempotency key needs the boot id of GET /sandbox/v1 in {BOOT_ID_HEADER}"))
        })?;
        let mut table = lock(&self.table);
        table.evict(Instant::now());
        let (key, fingerprint) = (digest(key.as_bytes()), digest(request));
        if let Some(entry) = table.results.get(&key) {
            if entry.fingerprint != fingerprint {
                return Err(ApiError::new(ErrorCode::Conflict, "the idempotency key was used for another request"));
            }
            return Ok(Some(Reservation::Wait(entry.response.subscribe())));
        }
        if !table.is_recent(boot.as_bytes()) || table.evicted.iter().any(|keys| keys.contains(&key)) {
            return Err(outcome_unknown());
        }
        table.results.insert(key, Entry { fingerprint, response: watch::Sender::new(None) });
        table.order.push_back((key, Instant::now()));
        Ok(Some(Reservation::Run(InFlight { table: Arc::clone(&self.table), key, done: false })))
    }
}

pub(super) fn outcome_unknown() -> ApiError {
    ApiError::new(ErrorCode::OutcomeUnknown, "outcome unknown: the key is from an earlier boot or was forgotten")
}

fn lock(table: &Arc<Mutex<Table>>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn digest(bytes: &[u8]) -> u128 {
    let digest = Sha256::digest(bytes);
    digest.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

impl Table {
    fn boot_id(&self) -> String {
        format!("{}-{}", self.boot, self.epoch)
    }

    /// Whether every key used under this boot id is still known, as kept or as evicted.
    fn is_recent(&self, boot_id: &[u8]) -> bool {
        let before = self.epoch.checked_sub(1).map(|epoch| format!("{}-{epoch}", self.boot));
        boot_id == self.boot_id().as_bytes() || before.is_some_and(|before| boot_id == before.as_bytes())
    }

    /// Evicts the oldest finished results until the rest is within the limits of age, number and size.
    fn evict(&mut self, now: Instant) {
        let mut unfinished = Vec::new();
        while let Some((key, since)) = self.order.front().copied() {
            let young = now.duration_since(since) < RESULT_RETENTION;
            if young && self.results.len() < MAX_RESULTS && self.bytes <= MAX_TOTAL_BYTES {
                break;
            }
            self.order.pop_front();
            let Some(entry) = self.results.get(&key) else { continue };
            let Some(size) = entry.response.borrow().as_ref().map(|response| response.body.len()) else {
                unfinished.push((key, since));
                continue;
            };
            self.results.remove(&key);
            self.bytes -= size;
            self.record_evicted(key);
        }
        for entry in unfinished.into_iter().rev() {
            self.order.push_front(entry);
        }
    }

    fn record_evicted(&mut self, key: u128) {
        if self.evicted[0].len() >= MAX_EVICTED_KEYS {
            self.evicted[1] = std::mem::take(&mut self.evicted[0]);
            self.epoch += 1;
        }
        self.evicted[0].insert(key);
    }
}

impl InFlight {
    /// Publishes the response to all current and later requests with this key.
    pub(super) fn finish(mut self, response: StoredResponse) {
        self.done = true;
        let mut table = lock(&self.table);
        if response.body.len() > MAX_RESULT_BYTES {
            // Too large to keep: requests that already wait get the response, later ones get "outcome unknown".
            if let Some(entry) = table.results.remove(&self.key) {
                entry.response.send_replace(Some(response));
                table.record_evicted(self.key);
            }
            return;
        }
        let size = response.body.len();
        if let Some(entry) = table.results.get(&self.key) {
            entry.response.send_replace(Some(response));
            table.bytes += size;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.done {
            let mut table = lock(&self.table);
            table.results.remove(&self.key);
            table.record_evicted(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(key: &str, boot: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY_HEADER, key.parse().expect("a value"));
        headers.insert(BOOT_ID_HEADER, boot.parse().expect("a value"));
        headers
    }

    fn run(keys: &IdempotencyKeys, key: &str) -> InFlight {
        match keys.reserve(&headers(key, &keys.boot_id()), b"request") {
            Ok(Some(Reservation::Run(in_flight))) => in_flight,
            other => panic!("{other:?}"),
        }
    }

    fn refused(keys: &IdempotencyKeys, key: &str, boot: &str, request: &[u8]) -> ErrorCode {
        keys.reserve(&headers(key, boot), request).expect_err("refused").code
    }

    fn response(size: usize) -> StoredResponse {
        StoredResponse { status: StatusCode::OK, body: Bytes::from(vec![b'x'; size]) }
    }

    #[test]
    fn a_repeated_key_gets_the_first_response() {
        let keys = IdempotencyKeys::new();
        run(&keys, "a").finish(response(3));
        match keys.reserve(&headers("a", &keys.boot_id()), b"request") {
            Ok(Some(Reservation::Wait(waiting))) => assert_eq!(*waiting.borrow(), Some(response(3))),
            other => panic!("{other:?}"),
        }
        assert_eq!(refused(&keys, "a", &keys.boot_id(), b"another"), ErrorCode::Conflict);
    }

    #[test]
    fn another_boot_an_abandoned_run_and_a_large_response_leave_the_outcome_unknown() {
        let keys = IdempotencyKeys::new();
        assert_eq!(refused(&keys, "a", &IdempotencyKeys::new().boot_id(), b"request"), ErrorCode::OutcomeUnknown);
        drop(run(&keys, "b"));
        assert_eq!(refused(&keys, "b", &keys.boot_id(), b"request"), ErrorCode::OutcomeUnknown);
        run(&keys, "c").finish(response(MAX_RESULT_BYTES + 1));
        assert_eq!(refused(&keys, "c", &keys.boot_id(), b"request"), ErrorCode::OutcomeUnknown);
    }

    #[test]
    fn evicted_keys_never_run_again_and_memory_stays_bounded() {
        let keys = IdempotencyKeys::new();
        let first_boot = keys.boot_id();
        for number in 0..MAX_RESULTS + 2 * MAX_EVICTED_KEYS + 10 {
            run(&keys, &number.to_string()).finish(response(1));
            if number == MAX_RESULTS + 5 {
                assert_eq!(refused(&keys, "0", &first_boot, b"request"), ErrorCode::OutcomeUnknown);
            }
        }
        assert_ne!(keys.boot_id(), first_boot);
        assert_eq!(refused(&keys, "0", &first_boot, b"request"), ErrorCode::OutcomeUnknown);
        let table = lock(&keys.table);
        assert!(table.results.len() <= MAX_RESULTS && table.evicted.iter().all(|keys| keys.len() <= MAX_EVICTED_KEYS));
    }

    #[test]
    fn a_key_needs_its_boot_id() {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY_HEADER, "a".parse().expect("a value"));
        assert_eq!(IdempotencyKeys::new().reserve(&headers, b"").expect_err("refused").code, ErrorCode::Invalid);
    }
}
