//! The node's side of a supervisor's socket: calls with responses, and events.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::kernel::supervisor::SOCKET;
use crate::kernel::supervisor::protocol::{self, Call, Failure, Message, Request, Response};
use crate::runtime::{Exit, RuntimeError};

/// Timeout for a call. Starting a container takes longest, and is limited by the supervisor itself.
const CALL_DEADLINE: Duration = Duration::from_secs(40);

/// A response and the descriptors sent with it.
pub(crate) type Reply = (Response, Vec<OwnedFd>);

/// A connection to one supervisor.
pub(crate) struct SupervisorClient {
    pod: String,
    socket: AsyncFd<OwnedFd>,
    next: AtomicU64,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    closed: bool,
    responses: HashMap<u64, oneshot::Sender<Reply>>,
    execs: HashMap<u64, oneshot::Sender<Exit>>,
}

/// An event from the supervisor.
pub(crate) enum SupervisorEvent {
    Exited {
        container: String,
        attempt: u32,
        exit: Exit,
        /// The last descriptors of its mount namespace. Closing them waits for the disk.
        mounts: Vec<OwnedFd>,
    },
    /// The connection, and with it the supervisor, is lost.
    Lost,
}

impl SupervisorClient {
    /// Wraps a connected socket and starts reading from it. `on_event` is called from one task, in order. The receiver
    /// gets the supervisor's first response: that its Pod is ready, or why not.
    pub(crate) fn start(
        pod: String,
        socket: OwnedFd,
        on_event: impl Fn(SupervisorEvent) + Send + Sync + 'static,
    ) -> io::Result<(Arc<Self>, oneshot::Receiver<Reply>)> {
        let (ready_sender, receiver) = oneshot::channel();
        let responses = HashMap::from([(0, ready_sender)]);
        rustix::io::ioctl_fionbio(&socket, true)?;
        let client = Arc::new(Self {
            pod,
            socket: crate::kernel::sys::register(socket)?,
            next: AtomicU64::new(1),
            pending: Mutex::new(Pending { responses, ..Pending::default() }),
        });
        let reader = Arc::clone(&client);
        tokio::spawn(async move {
            reader.read(&on_event).await;
            let mut pending = reader.pending.lock();
            pending.closed = true;
            pending.responses.clear();
            pending.execs.clear();
            drop(pending);
            on_event(SupervisorEvent::Lost);
        });
        Ok((client, receiver))
    }

    /// Connects to a supervisor by the socket in its Pod's folder.
    pub(crate) fn connect(dir: &Path) -> io::Result<OwnedFd> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // The folder's path may be longer than a socket address; the path of its descriptor is not.
        let folder = std::fs::File::open(dir)?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", std::os::fd::AsRawFd::as_raw_fd(&folder));
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    async fn read(&self, on_event: &impl Fn(SupervisorEvent)) {
        loop {
            let Ok(mut ready) = self.socket.readable().await else { return };
            match ready.try_io(|socket| protocol::receive::<Message>(socket.get_ref())) {
                Ok(Ok(Some((message, descriptors)))) => self.dispatch(message, descriptors, on_event),
                // A reset is reported before the last messages are read, such as the reason why a Pod could not be
                // created: keep reading.
                Ok(Err(error))
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset) => {}
                Ok(Ok(None) | Err(_)) => return,
                Err(_would_block) => {}
            }
        }
    }

    fn dispatch(&self, message: Message, descriptors: Vec<OwnedFd>, on_event: &impl Fn(SupervisorEvent)) {
        match message {
            Message::Response { id, response } => {
                if let Some(sender) = self.pending.lock().responses.remove(&id) {
                    // The caller may have stopped waiting.
                    let _ = sender.send((response, descriptors));
                }
            }
            Message::Exited { container, attempt, exit } => {
                on_event(SupervisorEvent::Exited { container, attempt, exit, mounts: descriptors });
            }
            Message::ExecExited { id, exit } => {
                if let Some(sender) = self.pending.lock().execs.remove(&id) {
                    let _ = sender.send(exit);
                }
            }
        }
    }

    fn lost(&self) -> RuntimeError {
        RuntimeError::SupervisorLost(self.pod.clone())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.pending.lock().closed
    }

    pub(crate) fn pod(&self) -> &str {
        &self.pod
    }

    /// Waits for the response of a registered call.
    pub(crate) async fn wait(&self, receiver: oneshot::Receiver<Reply>) -> Result<Reply, RuntimeError> {
        match tokio::time::timeout(CALL_DEADLINE, receiver).await {
            Ok(Ok((Response::Failed(failure), _))) => Err(self.failure_to_error(failure)),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(self.lost()),
            Err(_) => Err(RuntimeError::Timeout("a call to the Pod's supervisor")),
        }
    }

    /// Sends a call and waits for its response.
    pub(crate) async fn call(&self, call: Call, descriptors: &[BorrowedFd<'_>]) -> Result<Reply, RuntimeError> {
        let (id, receiver) = self.register_call()?;
        self.send(id, call, descriptors).await?;
        self.wait(receiver).await
    }

    fn register_call(&self) -> Result<(u64, oneshot::Receiver<Reply>), RuntimeError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let mut pending = self.pending.lock();
        if pending.closed {
            return Err(self.lost());
        }
        pending.responses.insert(id, sender);
        Ok((id, receiver))
    }

    async fn send(&self, id: u64, call: Call, descriptors: &[BorrowedFd<'_>]) -> Result<(), RuntimeError> {
        let request = Request { id, call };
        loop {
            let mut ready = self.socket.writable().await.map_err(|_| self.lost())?;
            match ready.try_io(|socket| protocol::send(socket.get_ref(), &request, descriptors)) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    self.pending.lock().responses.remove(&id);
                    return Err(RuntimeError::Refused("the request is larger than a supervisor accepts".to_owned()));
                }
                Ok(Err(_)) => {
                    self.pending.lock().responses.remove(&id);
                    return Err(self.lost());
                }
                Err(_would_block) => {}
            }
        }
    }

    /// Starts a command. Returns its id, its terminal if it has one, and a receiver for its exit.
    pub(crate) async fn exec(
        &self,
        call: Call,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(u64, Vec<OwnedFd>, oneshot::Receiver<Exit>), RuntimeError> {
        let (id, receiver) = self.register_call()?;
        let (sender, exit) = oneshot::channel();
        self.pending.lock().execs.insert(id, sender);
        let reply = match self.send(id, call, descriptors).await {
            Ok(()) => self.wait(receiver).await,
            Err(error) => Err(error),
        };
        match reply {
            Ok((_, descriptors)) => Ok((id, descriptors, exit)),
            Err(error) => {
                self.pending.lock().execs.remove(&id);
                Err(error)
            }
        }
    }

    /// Kills a command that no caller waits for any more. Best effort, without waiting.
    pub(crate) fn abandon_exec(&self, exec: u64) {
        if self.pending.lock().execs.remove(&exec).is_some() {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            let _ = protocol::send(self.socket.get_ref(), &Request { id, call: Call::KillExec { exec } }, &[]);
        }
    }

    fn failure_to_error(&self, failure: Failure) -> RuntimeError {
        match failure {
            Failure::NotRunning { container } => RuntimeError::NotRunning { pod: self.pod.clone(), container },
            Failure::CannotRun { command, message, missing } => RuntimeError::CannotRun { command, message, missing },
            Failure::Kernel { step, errno } => {
                RuntimeError::Kernel { step, source: io::Error::from_raw_os_error(errno) }
            }
            Failure::Protocol { message } => RuntimeError::Protocol(message),
        }
    }
}

/// Borrows a list of descriptors for a call.
pub(crate) fn borrowed(list: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    list.iter().map(AsFd::as_fd).collect()
}
