//! Copies a container's output to its log and to attached clients.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::PollFlags;

use super::logs::{Lines, Stream};

/// Maximum number of bytes that an attached client may be behind before it is disconnected: the container never waits
/// for it.
const MAX_PENDING: usize = 1 << 20;

/// One output stream of a container.
pub(super) struct Output {
    pub(super) fd: OwnedFd,
    pub(super) stream: Stream,
    pub(super) lines: Lines,
    pub(super) open: bool,
}

impl Output {
    pub(super) fn new(fd: OwnedFd, stream: Stream) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd, stream, lines: Lines::new(stream), open: true })
    }
}

/// The pipe of one attached client.
pub(super) struct Sink {
    pub(super) fd: OwnedFd,
    pub(super) stream: Stream,
    pending: VecDeque<u8>,
    pub(super) open: bool,
}

impl Sink {
    pub(super) fn new(fd: OwnedFd, stream: Stream) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd, stream, pending: VecDeque::new(), open: true })
    }

    /// Only a sink with pending bytes is polled for writing; hang-ups are always reported.
    pub(super) fn interest(&self) -> PollFlags {
        if self.pending.is_empty() { PollFlags::empty() } else { PollFlags::OUT }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.pending.len() + bytes.len() > MAX_PENDING {
            self.open = false;
            return;
        }
        self.pending.extend(bytes);
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while !self.pending.is_empty() {
            let (front, _) = self.pending.as_slices();
            match rustix::io::write(&self.fd, front) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                Err(_) => {
                    self.open = false;
                    return;
                }
            }
        }
    }
}
