//! A bounded log of a process's recent output. Any number of readers can read it from any offset that is still kept.
//!
//! A lossless reader blocks the process, as a full pipe would, instead of losing bytes; other readers lose what is
//! overwritten and are told how much.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

/// The stream that bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// One item of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
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

/// Writes to one stream are joined into segments of up to this size, so that single bytes do not take a segment each.
const SEGMENT: usize = 16 * 1024;

/// The shared log. Offsets count the bytes of both streams together, in order of arrival.
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
    lossless: HashMap<u64, u64>,
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

    /// Whether an append would overwrite bytes that a lossless reader has not read.
    fn would_overwrite(&self) -> bool {
        self.lossless.values().any(|cursor| self.end - cursor >= self.limit as u64)
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
        let oldest_needed = self.lossless.values().min().copied().unwrap_or(u64::MAX);
        while self.kept > self.limit && self.segments.len() > 1 {
            let Some(first) = self.segments.front() else { break };
            let size = first.bytes.len();
            if first.offset + size as u64 > oldest_needed {
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
            lossless: HashMap::new(),
            next_reader: 0,
        };
        Arc::new(Self { state: Mutex::new(state), changed: watch::Sender::new(0), progress: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends output; waits while a lossless reader is behind by the size of the log.
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
                if !state.would_overwrite() {
                    state.push(stream, bytes);
                    break;
                }
            }
            progress.await;
        }
        self.changed.send_modify(|version| *version += 1);
    }

    /// Marks the end of the output.
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

    /// A reader from `offset`; bytes that are no longer kept are reported as skipped.
    pub fn reader(self: &Arc<Self>, offset: u64, lossless: bool) -> Reader {
        let mut state = self.lock();
        let cursor = offset.min(state.end);
        let id = lossless.then(|| {
            state.next_reader += 1;
            let id = state.next_reader;
            let held = cursor.max(state.start());
            state.lossless.insert(id, held);
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

    /// The next chunk of at most `max_bytes` bytes; `None` when the log is closed and read to its end.
    pub async fn next(&mut self, max_bytes: usize) -> Option<Chunk> {
        loop {
            self.changed.borrow_and_update();
            match self.read_next(max_bytes) {
                ReadResult::Chunk(piece) => return Some(piece),
                ReadResult::End => return None,
                ReadResult::Nothing => {}
            }
            if self.changed.changed().await.is_err() {
                return None;
            }
        }
    }

    /// The next chunk if it is there already.
    pub fn try_next(&mut self, max_bytes: usize) -> Option<Chunk> {
        match self.read_next(max_bytes) {
            ReadResult::Chunk(piece) => Some(piece),
            ReadResult::End | ReadResult::Nothing => None,
        }
    }

    fn read_next(&mut self, max_bytes: usize) -> ReadResult {
        let mut state = self.log.lock();
        if self.cursor < state.start() {
            let piece = Chunk::Skipped { offset: self.cursor, bytes: state.start() - self.cursor };
            self.cursor = state.start();
            return ReadResult::Chunk(piece);
        }
        let index =
            state.segments.partition_point(|segment| segment.offset + segment.bytes.len() as u64 <= self.cursor);
        let Some(segment) = state.segments.get(index) else {
            return if state.closed { ReadResult::End } else { ReadResult::Nothing };
        };
        let from = usize::try_from(self.cursor - segment.offset).unwrap_or_default();
        let until = segment.bytes.len().min(from + max_bytes);
        let piece = Chunk::Output {
            stream: segment.stream,
            offset: self.cursor,
            bytes: Bytes::copy_from_slice(&segment.bytes[from..until]),
        };
        self.cursor += (until - from) as u64;
        if let Some(id) = self.id {
            state.lossless.insert(id, self.cursor);
            self.log.progress.notify_waiters();
        }
        ReadResult::Chunk(piece)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.log.lock().lossless.remove(&id);
            self.log.progress.notify_waiters();
        }
    }
}

enum ReadResult {
    Chunk(Chunk),
    Nothing,
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(stream: Stream, offset: u64, text: &str) -> Option<Chunk> {
        Some(Chunk::Output { stream, offset, bytes: Bytes::copy_from_slice(text.as_bytes()) })
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
        assert_eq!(reader.next(1).await, Some(Chunk::Skipped { offset: 0, bytes: 9 * kept }));
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
        assert!(matches!(reader.next(SEGMENT).await, Some(Chunk::Output { offset: 0, .. })));
        assert!(matches!(reader.next(SEGMENT).await, Some(Chunk::Output { offset, .. }) if offset == SEGMENT as u64));
        drop(reader);
        writer.await.expect("the writer is free again");
        assert_eq!(log.range().1, 3 * SEGMENT as u64);
    }
}
