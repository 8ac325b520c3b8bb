//! One SPDY connection on the server side: accepts streams, answers pings, moves data, closes cleanly.
//!
//! A reader task cuts the connection into frames and feeds each stream's bounded queue; a writer task owns the other
//! direction. Both belong to the [`Session`] and end with it.

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

/// Two streams per forwarded connection: 500 connections at a time through one `kubectl port-forward`.
const MAX_STREAMS: usize = 1000;
/// Pieces waiting in one stream; pieces are at most one read of the connection.
const STREAM_QUEUE: usize = 128;
const OUTPUT_QUEUE: usize = 64;
/// A stream whose reader takes nothing for so long is reset, because it holds up all others of its connection.
const STALL_LIMIT: Duration = Duration::from_secs(60);
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Larger writes are cut, so that streams take turns.
const MAX_DATA_FRAME: usize = 32 * 1024;

struct Entry {
    /// Gone once the client has half-closed.
    data: Option<mpsc::Sender<Bytes>>,
    local_closed: bool,
    reset: CancellationToken,
}

type Streams = Arc<Mutex<HashMap<u32, Entry>>>;

/// A stream the client opened. It must be answered with [`accept`](Self::accept) or [`refuse`](Self::refuse).
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
    streams: Streams,
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

    /// Half-closes: nothing more comes from the server on this stream.
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

    /// Ends both directions at once.
    pub async fn reset(mut self, status: u32) {
        self.finished = true;
        if self.streams.lock().remove(&self.id).is_some() {
            // A closed connection has no stream left to reset.
            let _ = self.output.send(Frame::RstStream { id: self.id, status }).await;
        }
    }

    /// Resolves when the client has reset the stream or the connection has ended.
    pub fn reset_token(&self) -> CancellationToken {
        self.reset.clone()
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        if !self.finished && self.streams.lock().remove(&self.id).is_some() {
            // Only reached when the task that held the stream was cancelled; then the connection is about to close.
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
    /// `source` and `sink` are the two directions of an upgraded connection, in slices of any size.
    pub fn start<R, W>(source: R, sink: W) -> Self
    where
        R: AsyncStream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
        W: Sink<Bytes, Error = io::Error> + Send + Unpin + 'static,
    {
        Self::with_stall_limit(source, sink, STALL_LIMIT)
    }

    /// As [`start`](Self::start), with another patience for streams whose reader takes nothing.
    pub fn with_stall_limit<R, W>(source: R, sink: W, stall_limit: Duration) -> Self
    where
        R: AsyncStream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
        W: Sink<Bytes, Error = io::Error> + Send + Unpin + 'static,
    {
        let (output, frames) = mpsc::channel(OUTPUT_QUEUE);
        let (announce, incoming) = mpsc::channel(16);
        let ended = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let reader = Reader {
            streams: Streams::default(),
            output: output.clone(),
            announce,
            last_id: 0,
            ended: ended.clone(),
            stall_limit,
        };
        tasks.spawn(reader.run(source));
        tasks.spawn(write_frames(frames, sink, ended.clone()));
        Self { incoming, output, tasks, ended }
    }

    /// The next stream, or `None` once the connection has ended.
    pub async fn next_stream(&mut self) -> Option<NewStream> {
        self.incoming.recv().await
    }

    /// Resolves when the connection has ended for whatever reason.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Sends what is queued, says goodbye and closes.
    pub async fn close(mut self) {
        let goodbye = async {
            if self.output.send(Frame::GoAway { last_stream: 0 }).await.is_ok() {
                // The writer ends after a goodbye; the reader ends with the session.
                self.tasks.join_next().await;
            }
        };
        // A client that reads nothing any more is not waited for.
        let _ = timeout(CLOSE_LIMIT, goodbye).await;
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
            let goodbye = matches!(frame, Frame::GoAway { .. });
            sink.feed(encoder.encode(&frame)?).await?;
            if goodbye {
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
    streams: Streams,
    output: mpsc::Sender<Frame>,
    announce: mpsc::Sender<NewStream>,
    last_id: u32,
    ended: CancellationToken,
    stall_limit: Duration,
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
            // Replies answer streams that we never open; after a goodbye the client closes by itself.
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
            streams.insert(id, Entry { data, local_closed: false, reset: reset.clone() });
        }
        let writer =
            StreamWriter { id, output: self.output.clone(), streams: self.streams.clone(), reset, finished: false };
        let stream = NewStream { headers, reader, writer };
        self.announce.send(stream).await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe).into())
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
            && timeout(self.stall_limit, queue.send(payload)).await.is_err()
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
