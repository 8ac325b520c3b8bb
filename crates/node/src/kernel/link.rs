//! The node's end of a supervisor's socket: calls with answers, and what happens by itself.

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

use super::supervisor::SOCKET;
use super::wire::{self, Answer, Call, Failure, Message, Request};
use crate::runtime::{Exit, RuntimeError};

/// Longest a call may take. Starting a container is the slowest, and bounded by the supervisor itself.
const CALL_DEADLINE: Duration = Duration::from_secs(40);

/// An answer and the descriptors beside it.
pub(crate) type Reply = (Answer, Vec<OwnedFd>);

/// A connection to one supervisor.
pub(crate) struct Link {
    pod: String,
    socket: AsyncFd<OwnedFd>,
    next: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    closed: bool,
    answers: HashMap<u64, oneshot::Sender<Reply>>,
    execs: HashMap<u64, oneshot::Sender<Exit>>,
}

/// Something the supervisor says unasked.
pub(crate) enum Notice {
    Exited {
        container: String,
        attempt: u32,
        exit: Exit,
        /// The last ways into its mounts. Whoever drops them waits for the disk.
        mounts: Vec<OwnedFd>,
    },
    /// The connection, and with it the supervisor, is gone.
    Lost,
}

impl Link {
    /// Wraps a connected socket and starts reading from it. `notice` is called from one task, in order.
    /// The receiver gets the supervisor's first word: that its Pod is made, or why not.
    pub(crate) fn start(
        pod: String,
        socket: OwnedFd,
        notice: impl Fn(Notice) + Send + Sync + 'static,
    ) -> io::Result<(Arc<Self>, oneshot::Receiver<Reply>)> {
        let (first_word, receiver) = oneshot::channel();
        let answers = HashMap::from([(0, first_word)]);
        rustix::io::ioctl_fionbio(&socket, true)?;
        let link = Arc::new(Self {
            pod,
            socket: super::sys::register(socket)?,
            next: AtomicU64::new(1),
            waiting: Mutex::new(Waiting { answers, ..Waiting::default() }),
        });
        let reader = Arc::clone(&link);
        tokio::spawn(async move {
            reader.read(&notice).await;
            let mut waiting = reader.waiting.lock();
            waiting.closed = true;
            waiting.answers.clear();
            waiting.execs.clear();
            drop(waiting);
            notice(Notice::Lost);
        });
        Ok((link, receiver))
    }

    /// Connects to a supervisor by the socket in its Pod's folder.
    pub(crate) fn connect(dir: &Path) -> io::Result<OwnedFd> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // The folder's path may be longer than a socket address; its descriptor's is not.
        let folder = std::fs::File::open(dir)?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", std::os::fd::AsRawFd::as_raw_fd(&folder));
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    async fn read(&self, notice: &impl Fn(Notice)) {
        loop {
            let Ok(mut ready) = self.socket.readable().await else { return };
            match ready.try_io(|socket| wire::receive::<Message>(socket.get_ref())) {
                Ok(Ok(Some((message, descriptors)))) => self.dispatch(message, descriptors, notice),
                // A reset is told before what was said last: why a Pod could not be made, for one.
                Ok(Err(error))
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionReset) => {}
                Ok(Ok(None) | Err(_)) => return,
                Err(_would_block) => {}
            }
        }
    }

    fn dispatch(&self, message: Message, descriptors: Vec<OwnedFd>, notice: &impl Fn(Notice)) {
        match message {
            Message::Answer { id, answer } => {
                if let Some(waiting) = self.waiting.lock().answers.remove(&id) {
                    // The caller may have given up.
                    let _ = waiting.send((answer, descriptors));
                }
            }
            Message::Exited { container, attempt, exit } => {
                notice(Notice::Exited { container, attempt, exit, mounts: descriptors });
            }
            Message::ExecExited { id, exit } => {
                if let Some(waiting) = self.waiting.lock().execs.remove(&id) {
                    let _ = waiting.send(exit);
                }
            }
        }
    }

    fn lost(&self) -> RuntimeError {
        RuntimeError::SupervisorLost(self.pod.clone())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    pub(crate) fn pod(&self) -> &str {
        &self.pod
    }

    /// Waits for a reply registered earlier.
    pub(crate) async fn wait(&self, receiver: oneshot::Receiver<Reply>) -> Result<Reply, RuntimeError> {
        match tokio::time::timeout(CALL_DEADLINE, receiver).await {
            Ok(Ok((Answer::Failed(failure), _))) => Err(self.failed(failure)),
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(self.lost()),
            Err(_) => Err(RuntimeError::Timeout("a call to the Pod's supervisor")),
        }
    }

    /// Sends a call and waits for its answer.
    pub(crate) async fn call(&self, call: Call, descriptors: &[BorrowedFd<'_>]) -> Result<Reply, RuntimeError> {
        let (id, receiver) = self.begin()?;
        self.send(id, call, descriptors).await?;
        self.wait(receiver).await
    }

    fn begin(&self) -> Result<(u64, oneshot::Receiver<Reply>), RuntimeError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(self.lost());
        }
        waiting.answers.insert(id, sender);
        Ok((id, receiver))
    }

    async fn send(&self, id: u64, call: Call, descriptors: &[BorrowedFd<'_>]) -> Result<(), RuntimeError> {
        let request = Request { id, call };
        loop {
            let mut ready = self.socket.writable().await.map_err(|_| self.lost())?;
            match ready.try_io(|socket| wire::send(socket.get_ref(), &request, descriptors)) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    self.waiting.lock().answers.remove(&id);
                    return Err(RuntimeError::Refused("the request is larger than a supervisor takes".to_owned()));
                }
                Ok(Err(_)) => {
                    self.waiting.lock().answers.remove(&id);
                    return Err(self.lost());
                }
                Err(_would_block) => {}
            }
        }
    }

    /// Starts a command: its id, its terminal if it has one, and how it will end.
    pub(crate) async fn exec(
        &self,
        call: Call,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(u64, Vec<OwnedFd>, oneshot::Receiver<Exit>), RuntimeError> {
        let (id, receiver) = self.begin()?;
        let (sender, exit) = oneshot::channel();
        self.waiting.lock().execs.insert(id, sender);
        let reply = match self.send(id, call, descriptors).await {
            Ok(()) => self.wait(receiver).await,
            Err(error) => Err(error),
        };
        match reply {
            Ok((_, descriptors)) => Ok((id, descriptors, exit)),
            Err(error) => {
                self.waiting.lock().execs.remove(&id);
                Err(error)
            }
        }
    }

    /// Kills a command nobody waits for any more. Best effort, at once.
    pub(crate) fn abandon_exec(&self, exec: u64) {
        if self.waiting.lock().execs.remove(&exec).is_some() {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            let _ = wire::send(self.socket.get_ref(), &Request { id, call: Call::KillExec { exec } }, &[]);
        }
    }

    fn failed(&self, failure: Failure) -> RuntimeError {
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
