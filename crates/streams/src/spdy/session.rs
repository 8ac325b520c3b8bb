//! The server's end of a SPDY connection: accepts streams, replies to pings, transfers data, closes cleanly.
//!
//! A reader task parses frames and fills each stream's bounded queue; a writer task owns the other direction. Both
//! belong to the [`Session`] and end with it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Sink, SinkExt, Stream as AsyncStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::SpdyError;
use super::frame::{Frame, FrameReader, FrameWriter, status};
use super::headers::{self, Headers};

/// Maximum number of open streams. A forwarded connection uses two, so this allows 500 concurrent connections through
/// one `kubectl port-forward`.
const MAX_STREAMS: usize = 1000;
/// Maximum number of queued chunks of one stream; a chunk is at most one read of the connection.
const STREAM_QUEUE: usize = 128;
/// Maximum number of queued outgoing frames.
const OUTPUT_QUEUE: usize = 64;
/// A stream whose reader takes nothing for this long is reset, because it blocks all other streams of its connection.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for sending queued frames and GOAWAY when closing.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Larger writes are split, so that streams share the connection.
const MAX_DATA_FRAME: usize = 32 * 1024;

struct StreamEntry {
    /// `None` once the client has half-closed the stream.
    data: Option<mpsc::Sender<Bytes>>,
    local_closed: bool,
    reset: CancellationToken,
}

type StreamTable = Arc<Mutex<HashMap<u32, StreamEntry>>>;

/// A stream that the client opened. The receiver must call [`accept`](Self::accept) or [`refuse`](Self::refuse).
pub struct NewStream {
    pub headers: Headers,
    reader: mpsc::Receiver<Bytes>,
    writer: StreamWriter,
}

impl NewStream {
    pub fn header(&self, name: &str) -> Option<&str> {
        headers::find(&self.headers, name)
    }

    pub async fn accept(self) -> Result<(mpsc::Receiver<Bytes>, StreamWriter), SpdyError> {
        let reply = Frame::SynReply { id: self.writer.id, headers: Vec::new(), fin: false };
        self.writer.emit(reply).await?;
        Ok((self.reader, self.writer))
    }

    pub async fn refuse(self) {
        self.writer.reset(status::REFUSED_STREAM).await;
    }
}

/// The server's direction of one stream.
pub struct StreamWriter {
    id: u32,
    output: mpsc::Sender<Frame>,
    streams: StreamTable,
    reset: CancellationToken,
    finished: bool,
}

impl StreamWriter {
    async fn emit(&self, frame: Frame) -> Result<(), SpdyError> {
        tokio::select! {
            biased;
            () = self.reset.cancelled() => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            sent = self.output.send(frame) => sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe).into()),
        }
    }

    pub async fn send(&self, mut payload: Bytes) -> Result<(), SpdyError> {
        while !payload.is_empty() {
            let piece = payload.split_to(payload.len().min(MAX_DATA_FRAME));
            self.emit(Frame::Data { id: self.id, payload: piece, fin: false }).await?;
        }
        Ok(())
    }

    /// Half-closes the stream in the server's direction.
    pub async fn finish(mut self) -> Result<(), SpdyError> {
        self.finished = true;
        let sent = self.emit(Frame::Data { id: self.id, payload: Bytes::new(), fin: true }).await;
        let mut streams = self.streams.lock();
        if let Some(entry) = streams.get_mut(&self.id) {
            entry.local_closed = true;
            if entry.data.is_none() {
                streams.remove(&self.id);
            }
        }
        sent
    }

    /// Resets the stream, which ends both directions.
    pub async fn reset(mut self, status: u32) {
        self.finished = true;
        if self.streams.lock().remove(&self.id).is_some() {
            // Fails only if the connection is closed.
            let _ = self.output.send(Frame::RstStream { id: self.id, status }).await;
        }
    }

    /// Cancelled when the client resets the stream or the connection ends.
    pub fn reset_token(&self) -> CancellationToken {
        self.reset.clone()
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        if !self.finished && self.streams.lock().remove(&self.id).is_some() {
            // Reached only when the task that owned the stream was cancelled; the connection is then about to close.
            let _ = self.output.try_send(Frame::RstStream { id: self.id, status: status::CANCEL });
        }
    }
}

/// A running connection.
pub struct Session {
    incoming: mpsc::Receiver<NewStream>,
    output: mpsc::Sender<Frame>,
    tasks: JoinSet<Result<(), SpdyError>>,
    ended: CancellationToken,
}

impl Session {
    /// `source` and `sink` are the two directions of an upgraded connection, in chunks of any size.
    pub fn start<R, W>(source: R, sink: W) -> Self
    where
        R: AsyncStream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
        W: Sink<Bytes, Error = io::Error> + Send + Unpin + 'static,
    {
        Self::with_stall_timeout(source, sink, STALL_TIMEOUT)
    }

    /// As [`start`](Self::start), with another timeout for streams whose reader takes nothing.
    pub fn with_stall_timeout<R, W>(source: R, sink: W, stall_timeout: Duration) -> Self
    where
        R: AsyncStream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
        W: Sink<Bytes, Error = io::Error> + Send + Unpin + 'static,
    {
        let (output, frames) = mpsc::channel(OUTPUT_QUEUE);
        let (accepted, incoming) = mpsc::channel(16);
        let ended = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let reader = Reader {
            streams: StreamTable::default(),
            output: output.clone(),
            accepted,
            last_id: 0,
            ended: ended.clone(),
            stall_timeout,
        };
        tasks.spawn(reader.run(source));
        tasks.spawn(write_frames(frames, sink, ended.clone()));
        Self { incoming, output, tasks, ended }
    }

    /// The next stream, or `None` once the connection has ended.
    pub async fn next_stream(&mut self) -> Option<NewStream> {
        self.incoming.recv().await
    }

    /// Cancelled when the connection ends for any reason.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Sends the queued frames and GOAWAY, then closes the connection.
    pub async fn close(mut self) {
        let go_away = async {
            if self.output.send(Frame::GoAway { last_stream: 0 }).await.is_ok() {
                // The writer task ends after GOAWAY; the reader task ends with the session.
                self.tasks.join_next().await;
            }
        };
        // The timeout is for a client that no longer reads.
        let _ = timeout(CLOSE_TIMEOUT, go_away).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

async fn write_frames<W>(
    mut frames: mpsc::Receiver<Frame>,
    mut sink: W,
    ended: CancellationToken,
) -> Result<(), SpdyError>
where
    W: Sink<Bytes, Error = io::Error> + Unpin,
{
    let _end_session = ended.drop_guard();
    let mut encoder = FrameWriter::default();
    while let Some(first) = frames.recv().await {
        let mut next = Some(first);
        while let Some(frame) = next {
            let last = matches!(frame, Frame::GoAway { .. });
            sink.feed(encoder.encode(&frame)?).await?;
            if last {
                sink.close().await?;
                return Ok(());
            }
            next = frames.try_recv().ok();
        }
        sink.flush().await?;
    }
    Ok(())
}

struct Reader {
    streams: StreamTable,
    output: mpsc::Sender<Frame>,
    accepted: mpsc::Sender<NewStream>,
    last_id: u32,
    ended: CancellationToken,
    stall_timeout: Duration,
}

impl Reader {
    async fn run<R>(mut self, mut source: R) -> Result<(), SpdyError>
    where
        R: AsyncStream<Item = io::Result<Bytes>> + Unpin,
    {
        let ended = self.ended.clone();
        let _end_session = ended.clone().drop_guard();
        let outcome = tokio::select! {
            outcome = self.read_frames(&mut source) => outcome,
            () = ended.cancelled() => Ok(()),
        };
        for entry in self.streams.lock().drain() {
            entry.1.reset.cancel();
        }
        if let Err(error) = &outcome {
            tracing::debug!(%error, "SPDY connection ended");
        }
        outcome
    }

    async fn read_frames<R>(&mut self, source: &mut R) -> Result<(), SpdyError>
    where
        R: AsyncStream<Item = io::Result<Bytes>> + Unpin,
    {
        let mut frames = FrameReader::default();
        while let Some(piece) = source.next().await {
            frames.push(&piece?);
            while let Some(frame) = frames.next()? {
                self.handle(frame).await?;
            }
        }
        Ok(())
    }

    async fn handle(&mut self, frame: Frame) -> Result<(), SpdyError> {
        match frame {
            Frame::SynStream { id, headers, fin } => self.open(id, headers, fin).await,
            Frame::Data { id, payload, fin } => self.deliver(id, payload, fin).await,
            Frame::RstStream { id, .. } => {
                if let Some(entry) = self.streams.lock().remove(&id) {
                    entry.reset.cancel();
                }
                Ok(())
            }
            Frame::Ping(id) => self.reply(Frame::Ping(id)).await,
            // The server opens no streams, so a reply has no effect; after GOAWAY the client closes the connection
            // itself.
            Frame::SynReply { .. } | Frame::GoAway { .. } => Ok(()),
        }
    }

    async fn reply(&self, frame: Frame) -> Result<(), SpdyError> {
        self.output.send(frame).await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe).into())
    }

    async fn open(&mut self, id: u32, headers: Headers, fin: bool) -> Result<(), SpdyError> {
        if id.is_multiple_of(2) || id <= self.last_id {
            return Err(SpdyError::StreamId(id));
        }
        self.last_id = id;
        let (data, reader) = mpsc::channel(STREAM_QUEUE);
        let reset = self.ended.child_token();
        {
            let mut streams = self.streams.lock();
            if streams.len() >= MAX_STREAMS {
                return Err(SpdyError::TooManyStreams(MAX_STREAMS));
            }
            let data = (!fin).then_some(data);
            streams.insert(id, StreamEntry { data, local_closed: false, reset: reset.clone() });
        }
        let writer =
            StreamWriter { id, output: self.output.clone(), streams: self.streams.clone(), reset, finished: false };
        let stream = NewStream { headers, reader, writer };
        self.accepted.send(stream).await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe).into())
    }

    async fn deliver(&mut self, id: u32, payload: Bytes, fin: bool) -> Result<(), SpdyError> {
        let Some(queue) = self.streams.lock().get(&id).map(|entry| entry.data.clone()) else {
            if id > self.last_id {
                self.reply(Frame::RstStream { id, status: status::INVALID_STREAM }).await?;
            }
            return Ok(());
        };
        if let Some(queue) = queue
            && !payload.is_empty()
            && timeout(self.stall_timeout, queue.send(payload)).await.is_err()
        {
            tracing::warn!(stream = id, "Reset a stream whose reader stalled");
            if let Some(entry) = self.streams.lock().remove(&id) {
                entry.reset.cancel();
            }
            return self.reply(Frame::RstStream { id, status: status::CANCEL }).await;
        }
        if fin {
            let mut streams = self.streams.lock();
            if let Some(entry) = streams.get_mut(&id) {
                entry.data = None;
                if entry.local_closed {
                    streams.remove(&id);
                }
            }
        }
        Ok(())
    }
}
