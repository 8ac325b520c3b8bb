//! A file as a response body: read directly if the bytes are in the page cache, else on a blocking thread.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::task::JoinHandle;

use crate::core::files::FileError;

/// Maximum size of one chunk: large enough to amortise a system call, small enough to keep many downloads cheap.
const CHUNK: usize = 256 * 1024;

/// The bytes `offset..offset + remaining` of an open file.
#[derive(Debug)]
pub(super) struct FileBody {
    file: Arc<OwnedFd>,
    offset: u64,
    remaining: u64,
    reading: Option<JoinHandle<(BytesMut, Result<usize, Errno>)>>,
    /// The previous chunk: its memory is reused once the connection has released it.
    last: Option<Bytes>,
}

impl FileBody {
    pub(super) fn new(file: OwnedFd, offset: u64, length: u64) -> Self {
        Self { file: Arc::new(file), offset, remaining: length, reading: None, last: None }
    }

    fn buffer(&mut self) -> BytesMut {
        let size = CHUNK.min(usize::try_from(self.remaining).unwrap_or(CHUNK));
        let mut buffer = match self.last.take().map(Bytes::try_into_mut) {
            Some(Ok(used)) => used,
            _ => BytesMut::with_capacity(size),
        };
        buffer.resize(size, 0);
        buffer
    }

    fn deliver(&mut self, mut buffer: BytesMut, read: usize) -> Result<Frame<Bytes>, FileError> {
        if read == 0 {
            // The file shrank during the transfer. Content-Length is sent already, so the body has to be aborted.
            return Err(FileError::Os(Errno::IO));
        }
        buffer.truncate(read);
        self.offset += read as u64;
        self.remaining -= read as u64;
        let bytes = buffer.freeze();
        self.last = Some(bytes.clone());
        Ok(Frame::data(bytes))
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = FileError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, FileError>>> {
        let this = &mut *self;
        if this.remaining == 0 && this.reading.is_none() {
            return Poll::Ready(None);
        }
        if this.reading.is_none() {
            let mut buffer = this.buffer();
            let ready = preadv2(&this.file, &mut [IoSliceMut::new(&mut buffer)], this.offset, ReadWriteFlags::NOWAIT);
            if let Ok(read) = ready
                && read > 0
            {
                return Poll::Ready(Some(this.deliver(buffer, read)));
            }
            let (file, offset) = (Arc::clone(&this.file), this.offset);
            this.reading = Some(tokio::task::spawn_blocking(move || {
                let read = rustix::io::pread(&file, &mut buffer[..], offset);
                (buffer, read)
            }));
        }
        let Some(reading) = this.reading.as_mut() else { return Poll::Pending };
        match Pin::new(reading).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(done) => {
                this.reading = None;
                let frame = match done {
                    Ok((buffer, Ok(read))) => this.deliver(buffer, read),
                    Ok((_, Err(errno))) => Err(errno.into()),
                    Err(_) => Err(FileError::Os(Errno::CANCELED)),
                };
                Poll::Ready(Some(frame))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0 && self.reading.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining)
    }
}
