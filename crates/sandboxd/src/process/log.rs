//! A process's recent output, bounded, readable from any offset that is still kept, by any number of readers.
//!
//! A patient reader holds the process back, as a pipe would, instead of losing bytes; the others lose what is
//! overwritten and are told how much.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

/// Which stream bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// What a reader gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Output {
        stream: Stream,
        offset: u64,
        bytes: Bytes,
    },
    /// These bytes were overwritten before they were read.
    Skipped {
        offset: u64,
        bytes: u64,
    },
}

/// Writes of one stream are gathered up to this size, so that single bytes do not cost a segment each.
const SEGMENT: usize = 16 * 1024;

/// The shared log. Offsets count the bytes of both streams together, in the order they arrived.
#[derive(Debug)]
pub struct Log {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    progress: Notify,
}

#[derive(Debug)]
struct State {
    segments: VecDeque<Segment>,
    kept: usize,
    limit: usize,
    end: u64,
    closed: bool,
    patient: HashMap<u64, u64>,
    next_reader: u64,
}

#[derive(Debug)]
struct Segment {
    offset: u64,
    stream: Stream,
    bytes: Vec<u8>,
}

impl State {
    fn start(&self) -> u64 {
        self.end - self.kept as u64
    }

    /// Whether a patient reader would lose bytes by an append.
    fn must_wait(&self) -> bool {
        self.patient.values().any(|cursor| self.end - cursor >= self.limit as u64)
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        match self.segments.back_mut() {
            Some(last) if last.stream == stream && last.bytes.len() + bytes.len() <= SEGMENT => {
                last.bytes.extend_from_slice(bytes);
            }
            _ => self.segments.push_back(Segment { offset: self.end, stream, bytes: bytes.to_vec() }),
        }
        self.kept += bytes.len();
        self.end += bytes.len() as u64;
        let slowest = self.patient.values().min().copied().unwrap_or(u64::MAX);
        while self.kept > self.limit && self.segments.len() > 1 {
            let Some(first) = self.segments.front() else { break };
            let size = first.bytes.len();
            if first.offset + size as u64 > slowest {
                break;
            }
            self.kept -= size;
            self.segments.pop_front();
        }
    }
}

impl Log {
    /// Keeps about `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        let state = State {
            segments: VecDeque::new(),
            kept: 0,
            limit,
            end: 0,
            closed: false,
            patient: HashMap::new(),
            next_reader: 0,
        };
        Arc::new(Self { state: Mutex::new(state), changed: watch::Sender::new(0), progress: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output; waits while a patient reader is a whole log behind.
    pub async fn append(&self, stream: Stream, bytes: &[u8]) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            {
                let mut state = self.lock();
                if state.closed {
                    return;
                }
                if !state.must_wait() {
                    state.push(stream, bytes);
                    break;
                }
            }
            progress.await;
        }
        self.changed.send_modify(|version| *version += 1);
    }

    /// No more output comes.
    pub fn close(&self) {
        self.lock().closed = true;
        self.progress.notify_waiters();
        self.changed.send_modify(|version| *version += 1);
    }

    /// Offsets of the oldest kept byte and of the next one.
    pub fn range(&self) -> (u64, u64) {
        let state = self.lock();
        (state.start(), state.end)
    }

    /// A reader from `offset`; what is no longer kept is reported as skipped.
    pub fn reader(self: &Arc<Self>, offset: u64, patient: bool) -> Reader {
        let mut state = self.lock();
        let cursor = offset.min(state.end);
        let id = patient.then(|| {
            state.next_reader += 1;
            let id = state.next_reader;
            let held = cursor.max(state.start());
            state.patient.insert(id, held);
            id
        });
        Reader { changed: self.changed.subscribe(), log: Arc::clone(self), cursor, id }
    }
}

/// One reader's position.
#[derive(Debug)]
pub struct Reader {
    log: Arc<Log>,
    changed: watch::Receiver<u64>,
    cursor: u64,
    id: Option<u64>,
}

impl Reader {
    pub fn offset(&self) -> u64 {
        self.cursor
    }

    /// The next piece of at most `most` bytes; `None` when the log is closed and read to its end.
    pub async fn next(&mut self, most: usize) -> Option<Piece> {
        loop {
            self.changed.borrow_and_update();
            match self.take(most) {
                Taken::Piece(piece) => return Some(piece),
                Taken::End => return None,
                Taken::Nothing => {}
            }
            if self.changed.changed().await.is_err() {
                return None;
            }
        }
    }

    /// The next piece if there is one now.
    pub fn try_next(&mut self, most: usize) -> Option<Piece> {
        match self.take(most) {
            Taken::Piece(piece) => Some(piece),
            Taken::End | Taken::Nothing => None,
        }
    }

    fn take(&mut self, most: usize) -> Taken {
        let mut state = self.log.lock();
        if self.cursor < state.start() {
            let piece = Piece::Skipped { offset: self.cursor, bytes: state.start() - self.cursor };
            self.cursor = state.start();
            return Taken::Piece(piece);
        }
        let index =
            state.segments.partition_point(|segment| segment.offset + segment.bytes.len() as u64 <= self.cursor);
        let Some(segment) = state.segments.get(index) else {
            return if state.closed { Taken::End } else { Taken::Nothing };
        };
        let from = usize::try_from(self.cursor - segment.offset).unwrap_or_default();
        let until = segment.bytes.len().min(from + most);
        let piece = Piece::Output {
            stream: segment.stream,
            offset: self.cursor,
            bytes: Bytes::copy_from_slice(&segment.bytes[from..until]),
        };
        self.cursor += (until - from) as u64;
        if let Some(id) = self.id {
            state.patient.insert(id, self.cursor);
            self.log.progress.notify_waiters();
        }
        Taken::Piece(piece)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.log.lock().patient.remove(&id);
            self.log.progress.notify_waiters();
        }
    }
}

enum Taken {
    Piece(Piece),
    Nothing,
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(stream: Stream, offset: u64, text: &str) -> Option<Piece> {
        Some(Piece::Output { stream, offset, bytes: Bytes::copy_from_slice(text.as_bytes()) })
    }

    #[tokio::test]
    async fn replays_from_any_kept_offset() {
        let log = Log::new(1024);
        log.append(Stream::Stdout, b"hello ").await;
        log.append(Stream::Stdout, b"world").await;
        log.append(Stream::Stderr, b"oops").await;
        log.close();
        let mut reader = log.reader(6, false);
        assert_eq!(reader.next(100).await, output(Stream::Stdout, 6, "world"));
        assert_eq!(reader.next(2).await, output(Stream::Stderr, 11, "oo"));
        assert_eq!(reader.next(2).await, output(Stream::Stderr, 13, "ps"));
        assert_eq!(reader.next(2).await, None);
    }

    #[tokio::test]
    async fn says_how_much_was_overwritten() {
        let log = Log::new(SEGMENT);
        for _ in 0..10 {
            log.append(Stream::Stdout, &[b'x'; SEGMENT]).await;
        }
        let mut reader = log.reader(0, false);
        let kept = SEGMENT as u64;
        assert_eq!(reader.next(1).await, Some(Piece::Skipped { offset: 0, bytes: 9 * kept }));
        assert_eq!(reader.next(1).await, output(Stream::Stdout, 9 * kept, "x"));
    }

    #[tokio::test]
    async fn a_patient_reader_holds_the_writer_back_until_it_goes() {
        let log = Log::new(SEGMENT);
        let mut reader = log.reader(0, true);
        log.append(Stream::Stdout, &[b'a'; SEGMENT]).await;
        let writer = tokio::spawn({
            let log = Arc::clone(&log);
            async move {
                log.append(Stream::Stdout, &[b'b'; SEGMENT]).await;
                log.append(Stream::Stdout, &[b'c'; SEGMENT]).await;
            }
        });
        tokio::task::yield_now().await;
        assert!(!writer.is_finished());
        assert!(matches!(reader.next(SEGMENT).await, Some(Piece::Output { offset: 0, .. })));
        assert!(matches!(reader.next(SEGMENT).await, Some(Piece::Output { offset, .. }) if offset == SEGMENT as u64));
        drop(reader);
        writer.await.expect("the writer is free again");
        assert_eq!(log.range().1, 3 * SEGMENT as u64);
    }
}
