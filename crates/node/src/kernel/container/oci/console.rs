//! The socket on which an OCI runtime sends the terminal it created for a container.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Timeout for the terminal, which arrives while the runtime creates the container.
const TERMINAL_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A listening console socket.
pub(crate) struct Console {
    listener: OwnedFd,
    path: PathBuf,
}

impl Console {
    /// Listens in the bundle's folder, whose path is short enough for a socket address.
    pub(crate) fn open(bundle: &Path) -> io::Result<Self> {
        let path = bundle.join("console.sock");
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path.as_path())?)?;
        rustix::net::listen(&listener, 1)?;
        Ok(Self { listener, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The terminal's master side, as sent by the runtime.
    pub(crate) fn receive(&self) -> io::Result<OwnedFd> {
        let timed_out = || io::Error::from_raw_os_error(libc::ETIMEDOUT);
        if poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&TERMINAL_TIMEOUT))? == 0 {
            return Err(timed_out());
        }
        let peer = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC)?;
        if poll(&mut [PollFd::new(&peer, PollFlags::IN)], Some(&TERMINAL_TIMEOUT))? == 0 {
            return Err(timed_out());
        }
        let mut name = [0_u8; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        rustix::net::recvmsg(&peer, &mut [IoSliceMut::new(&mut name)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let mut rights = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        rights.next().ok_or_else(|| io::Error::other("the runtime sent no terminal"))
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
