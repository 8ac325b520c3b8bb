//! Idempotency keys: a retried step returns the first result instead of running twice.
//!
//! A key counts only together with the boot id it was made for, so that a key from before a restart can never run a
//! command again. Results are kept for a while; the keys of forgotten results are kept longer; when even those are too
//! many the boot id changes; keys of its last but one value are then unknown. Nothing grows without bound and nothing
//! runs twice.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent_sandbox_protocol::native::{BOOT_ID_HEADER, ErrorCode, IDEMPOTENCY_KEY_HEADER};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::error::ApiError;

/// Results kept, for how long, and how large one may be.
const RESULTS: usize = 1024;
const RESULT_AGE: Duration = Duration::from_secs(3600);
const RESULT_SIZE: usize = 1 << 20;
/// All kept results together.
const RESULT_BYTES: usize = 16 << 20;
/// Keys of forgotten results, in each of two generations.
const FORGOTTEN: usize = 65_536;
const MAX_KEY: usize = 255;

/// A finished request's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// What a key means now.
#[derive(Debug)]
pub(super) enum Claim {
    /// Nobody used it: run, then say how it went.
    Run(Running),
    /// It is being used, or was: this is (or will be) the answer.
    Wait(watch::Receiver<Option<Answer>>),
}

/// The table of keys of one boot.
#[derive(Debug)]
pub struct Keys {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug)]
struct Table {
    boot: String,
    epoch: u64,
    results: HashMap<u128, Entry>,
    order: VecDeque<(u128, Instant)>,
    /// Forgotten under the current boot id and under the one before.
    forgotten: [HashSet<u128>; 2],
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    fingerprint: u128,
    answer: watch::Sender<Option<Answer>>,
}

/// The right to run a key's command. Dropping it without an answer leaves the key's outcome unknown.
#[derive(Debug)]
pub(super) struct Running {
    table: Arc<Mutex<Table>>,
    key: u128,
    done: bool,
}

impl Default for Keys {
    fn default() -> Self {
        Self::new()
    }
}

impl Keys {
    /// Keys of a new boot.
    pub fn new() -> Self {
        let boot = format!("{:016x}{:016x}", crate::random::number(), crate::random::number());
        let table = Table {
            boot,
            epoch: 0,
            results: HashMap::new(),
            order: VecDeque::new(),
            forgotten: Default::default(),
            bytes: 0,
        };
        Self { table: Arc::new(Mutex::new(table)) }
    }

    pub fn boot_id(&self) -> String {
        lock(&self.table).boot_id()
    }

    /// Looks up the key that `headers` carry; `None` when they carry none.
    pub(super) fn claim(&self, headers: &HeaderMap, request: &[u8]) -> Result<Option<Claim>, ApiError> {
        let Some(key) = headers.get(IDEMPOTENCY_KEY_HEADER) else { return Ok(None) };
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(ApiError::invalid(format!("the idempotency key must have 1 to {MAX_KEY} characters")));
        }
        let boot = headers.get(BOOT_ID_HEADER).ok_or_else(|| {
            ApiError::invalid(format!("an idempotency key needs the boot id of GET /sandbox/v1 in {BOOT_ID_HEADER}"))
        })?;
        let mut table = lock(&self.table);
        table.forget(Instant::now());
        let (key, fingerprint) = (digest(key.as_bytes()), digest(request));
        if let Some(entry) = table.results.get(&key) {
            if entry.fingerprint != fingerprint {
                return Err(ApiError::new(ErrorCode::Conflict, "the idempotency key was used for another request"));
            }
            return Ok(Some(Claim::Wait(entry.answer.subscribe())));
        }
        if !table.is_recent(boot.as_bytes()) || table.forgotten.iter().any(|keys| keys.contains(&key)) {
            return Err(outcome_unknown());
        }
        table.results.insert(key, Entry { fingerprint, answer: watch::Sender::new(None) });
        table.order.push_back((key, Instant::now()));
        Ok(Some(Claim::Run(Running { table: Arc::clone(&self.table), key, done: false })))
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

    /// Every key used under these boot ids is still known: kept, or among the forgotten.
    fn is_recent(&self, boot_id: &[u8]) -> bool {
        let before = self.epoch.checked_sub(1).map(|epoch| format!("{}-{epoch}", self.boot));
        boot_id == self.boot_id().as_bytes() || before.is_some_and(|before| boot_id == before.as_bytes())
    }

    /// Drops the oldest finished results until what is left is young and small enough.
    fn forget(&mut self, now: Instant) {
        let mut unfinished = Vec::new();
        while let Some((key, since)) = self.order.front().copied() {
            let young = now.duration_since(since) < RESULT_AGE;
            if young && self.results.len() < RESULTS && self.bytes <= RESULT_BYTES {
                break;
            }
            self.order.pop_front();
            let Some(entry) = self.results.get(&key) else { continue };
            let Some(size) = entry.answer.borrow().as_ref().map(|answer| answer.body.len()) else {
                unfinished.push((key, since));
                continue;
            };
            self.results.remove(&key);
            self.bytes -= size;
            self.remember_forgotten(key);
        }
        for entry in unfinished.into_iter().rev() {
            self.order.push_front(entry);
        }
    }

    fn remember_forgotten(&mut self, key: u128) {
        if self.forgotten[0].len() >= FORGOTTEN {
            self.forgotten[1] = std::mem::take(&mut self.forgotten[0]);
            self.epoch += 1;
        }
        self.forgotten[0].insert(key);
    }
}

impl Running {
    /// Publishes the answer to everyone who waits for this key, now and later.
    pub(super) fn finish(mut self, answer: Answer) {
        self.done = true;
        let mut table = lock(&self.table);
        if answer.body.len() > RESULT_SIZE {
            // Too large to keep: those who wait get it, those who come later learn that it is unknown.
            if let Some(entry) = table.results.remove(&self.key) {
                entry.answer.send_replace(Some(answer));
                table.remember_forgotten(self.key);
            }
            return;
        }
        let size = answer.body.len();
        if let Some(entry) = table.results.get(&self.key) {
            entry.answer.send_replace(Some(answer));
            table.bytes += size;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.done {
            let mut table = lock(&self.table);
            table.results.remove(&self.key);
            table.remember_forgotten(self.key);
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

    fn run(keys: &Keys, key: &str) -> Running {
        match keys.claim(&headers(key, &keys.boot_id()), b"request") {
            Ok(Some(Claim::Run(running))) => running,
            other => panic!("{other:?}"),
        }
    }

    fn refused(keys: &Keys, key: &str, boot: &str, request: &[u8]) -> ErrorCode {
        keys.claim(&headers(key, boot), request).expect_err("refused").code
    }

    fn answer(size: usize) -> Answer {
        Answer { status: StatusCode::OK, body: Bytes::from(vec![b'x'; size]) }
    }

    #[test]
    fn a_second_use_gets_the_first_answer() {
        let keys = Keys::new();
        run(&keys, "a").finish(answer(3));
        match keys.claim(&headers("a", &keys.boot_id()), b"request") {
            Ok(Some(Claim::Wait(waiting))) => assert_eq!(*waiting.borrow(), Some(answer(3))),
            other => panic!("{other:?}"),
        }
        assert_eq!(refused(&keys, "a", &keys.boot_id(), b"another"), ErrorCode::Conflict);
    }

    #[test]
    fn another_boot_an_abandoned_run_and_a_large_answer_leave_the_outcome_unknown() {
        let keys = Keys::new();
        assert_eq!(refused(&keys, "a", &Keys::new().boot_id(), b"request"), ErrorCode::OutcomeUnknown);
        drop(run(&keys, "b"));
        assert_eq!(refused(&keys, "b", &keys.boot_id(), b"request"), ErrorCode::OutcomeUnknown);
        run(&keys, "c").finish(answer(RESULT_SIZE + 1));
        assert_eq!(refused(&keys, "c", &keys.boot_id(), b"request"), ErrorCode::OutcomeUnknown);
    }

    #[test]
    fn evicted_keys_never_run_again_and_memory_stays_bounded() {
        let keys = Keys::new();
        let first_boot = keys.boot_id();
        for number in 0..RESULTS + 2 * FORGOTTEN + 10 {
            run(&keys, &number.to_string()).finish(answer(1));
            if number == RESULTS + 5 {
                assert_eq!(refused(&keys, "0", &first_boot, b"request"), ErrorCode::OutcomeUnknown);
            }
        }
        assert_ne!(keys.boot_id(), first_boot);
        assert_eq!(refused(&keys, "0", &first_boot, b"request"), ErrorCode::OutcomeUnknown);
        let table = lock(&keys.table);
        assert!(table.results.len() <= RESULTS && table.forgotten.iter().all(|keys| keys.len() <= FORGOTTEN));
    }

    #[test]
    fn a_key_needs_its_boot_id() {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY_HEADER, "a".parse().expect("a value"));
        assert_eq!(Keys::new().claim(&headers, b"").expect_err("refused").code, ErrorCode::Invalid);
    }
}
