//! The protocol between the node and a Pod's supervisor: one JSON document per packet of a Unix `SOCK_SEQPACKET`
//! connection, with descriptors as ancillary data. Large documents are passed as a memory file. Supervisors outlive the
//! node, so names on the wire must not change.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::runtime::{ContainerState, Exit, PodSandbox, User};

/// Maximum packet size. The state of a Pod with a hundred containers fits.
pub(crate) const MAX_PACKET: usize = 96 * 1024;
/// Maximum number of descriptors sent with one packet.
pub(crate) const MAX_DESCRIPTORS: usize = 4;

/// Set-up messages that a new supervisor receives first, each with a memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Setup {
    /// A `PodBasePlan`. `answer` requests a `Done` response: the supervisor is then kept ready for a Pod.
    #[serde(rename = "ground")]
    Base { answer: bool },
    /// A `PodPlan` for that base. The response is `Ready`.
    Pod,
}

/// A request of the node. Descriptors that are sent with a variant are named in its comment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Repeated in the response.
    pub(crate) id: u64,
    pub(crate) call: Call,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Call {
    /// With a memory file holding a `ContainerPlan`.
    Start,
    Signal {
        container: String,
        signal: i32,
    },
    Kill {
        container: String,
    },
    /// With the command's stdin, stdout and stderr, unless it gets a terminal.
    Exec(ExecCall),
    /// Kills a command started by the exec with this request id on this connection.
    KillExec {
        exec: u64,
    },
    /// With pipes to copy stdout and stderr into, as requested. The response carries the stdin pipe or the terminal.
    Attach {
        container: String,
        stdin: bool,
        stdout: bool,
        stderr: bool,
    },
    /// The response carries an unconnected TCP socket of the Pod's network namespace.
    Socket {
        ipv6: bool,
    },
    /// The response carries an nftables socket of the Pod's network namespace. For unprivileged Pods.
    PacketFilter,
    State,
    /// Kills everything, cleans up and exits after the response.
    Shutdown,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExecCall {
    pub(crate) container: String,
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: Option<String>,
    pub(crate) user: Option<User>,
    /// Rows and columns of the command's terminal, if it gets one; the response then carries the terminal.
    pub(crate) tty: Option<(u16, u16)>,
}

/// A message of the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Message {
    #[serde(rename = "answer")]
    Response {
        id: u64,
        #[serde(rename = "answer")]
        response: Response,
    },
    /// A container has exited.
    Exited { container: String, attempt: u32, exit: Exit },
    /// A command started by the exec with this request id has exited.
    ExecExited { id: u64, exit: Exit },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Response {
    Done,
    /// The Pod is created. Sent once, with id 0, on the connection the supervisor was started with.
    Ready(PodSandbox),
    Started(ContainerState),
    State {
        sandbox: PodSandbox,
        containers: Vec<ContainerState>,
    },
    Failed(Failure),
}

/// The reason why a call failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Failure {
    NotRunning {
        container: String,
    },
    CannotRun {
        command: String,
        message: String,
        /// The program does not exist. Supervisors of earlier versions do not send this field.
        #[serde(default)]
        missing: bool,
    },
    Kernel {
        step: String,
        errno: i32,
    },
    Protocol {
        message: String,
    },
}

impl Failure {
    pub(crate) fn kernel(step: impl Into<String>, error: &io::Error) -> Self {
        Self::Kernel { step: step.into(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }
}

/// Sends one packet. The caller handles `WouldBlock`.
pub(crate) fn send<T: Serialize>(socket: impl AsFd, document: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(document).map_err(io::Error::other)?;
    if bytes.len() > MAX_PACKET {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from_raw_os_error(libc::ETOOMANYREFS));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one packet; `None` when the connection is closed.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    // Most packets have a few hundred bytes: a buffer for the largest would have to be zeroed for each of them.
    let (_, length) = rustix::net::recv(&socket, &mut [0u8; 1], RecvFlags::PEEK | RecvFlags::TRUNC)?;
    let mut buffer = vec![0; length.min(MAX_PACKET)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let bytes = buffer.get(..received.bytes).unwrap_or_default();
    let document = serde_json::from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((document, descriptors)))
}

/// A memory file with a JSON document, for documents that may be larger than a packet.
pub(crate) fn memory_file<T: Serialize>(document: &T) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("agent-sandbox-plan", rustix::fs::MemfdFlags::CLOEXEC)?;
    let file = std::fs::File::from(fd);
    let mut writer = io::BufWriter::new(&file);
    serde_json::to_writer(&mut writer, document).map_err(io::Error::other)?;
    io::Write::flush(&mut writer)?;
    drop(writer);
    Ok(file.into())
}

/// Reads a document written by [`memory_file`].
pub(crate) fn read_memory_file<T: DeserializeOwned>(fd: OwnedFd) -> io::Result<T> {
    use std::io::{Read, Seek};
    let mut file = std::fs::File::from(fd);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor of an earlier version must understand this node, and the other way round.
    #[test]
    fn names_on_the_wire_do_not_change() {
        let json = |document: serde_json::Result<String>| document.unwrap();
        assert_eq!(json(serde_json::to_string(&Setup::Base { answer: true })), r#"{"ground":{"answer":true}}"#);
        assert_eq!(json(serde_json::to_string(&Setup::Pod)), r#""pod""#);
        let message = Message::Response { id: 3, response: Response::Done };
        assert_eq!(json(serde_json::to_string(&message)), r#"{"answer":{"id":3,"answer":"done"}}"#);
        let request = Request { id: 4, call: Call::KillExec { exec: 2 } };
        assert_eq!(json(serde_json::to_string(&request)), r#"{"id":4,"call":{"killExec":{"exec":2}}}"#);
    }
}
