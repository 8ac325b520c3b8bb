//! Streams into Pods: exec, attach and TCP connections.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::net::{TcpSocket, TcpStream};

use super::Pod;
use crate::kernel::container::oci::Convention;
use crate::kernel::supervisor::client::{SupervisorClient, borrowed};
use crate::kernel::supervisor::protocol::{Call, ExecCall};
use crate::kernel::sys;
use crate::runtime::{AttachRequest, ExecRequest, ExecSession, RuntimeError, TerminalSize};

/// Timeout for a connection inside a Pod: only the Pod's own kernel tables are involved.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

fn failed(step: &'static str) -> impl Fn(io::Error) -> RuntimeError {
    move |source| RuntimeError::Kernel { step: step.to_owned(), source }
}

/// Kills a command when no caller waits for its exit any more.
struct ExecGuard {
    supervisor: Arc<SupervisorClient>,
    exec: u64,
}

impl Drop for ExecGuard {
    fn drop(&mut self) {
        self.supervisor.abandon_exec(self.exec);
    }
}

pub(super) async fn exec(
    supervisor: &Arc<SupervisorClient>,
    container: &str,
    request: ExecRequest,
) -> Result<ExecSession, RuntimeError> {
    if request.command.is_empty() {
        return Err(RuntimeError::Refused("an exec needs a command".to_owned()));
    }
    let size = request.size.unwrap_or(TerminalSize { rows: 24, columns: 80 });
    let call = Call::Exec(ExecCall {
        container: container.to_owned(),
        command: request.command,
        env: request.env,
        working_dir: request.working_dir,
        user: request.user,
        tty: request.tty.then_some((size.rows, size.columns)),
    });
    if request.tty {
        let (exec, descriptors, exit) = supervisor.exec(call, &[]).await?;
        let master = descriptors
            .into_iter()
            .next()
            .ok_or_else(|| RuntimeError::Protocol("the response carried no terminal".to_owned()))?;
        let exit = exit_of(supervisor, exec, exit);
        return terminal_session(master, request.stdin, exit);
    }
    let (stdin_read, stdin_write) = stream(request.stdin, true)?;
    let (stdout_read, stdout_write) = stream(request.stdout, false)?;
    let (stderr_read, stderr_write) = stream(request.stderr, false)?;
    let child_ends = [stdin_read.0, stdout_write.0, stderr_write.0];
    let (exec, _, exit) = supervisor.exec(call, &borrowed(&child_ends)).await?;
    drop(child_ends);
    Ok(ExecSession {
        stdin: stdin_write.1.map(writer).transpose()?,
        stdout: stdout_read.1.map(reader).transpose()?,
        stderr: stderr_read.1.map(reader).transpose()?,
        resize: None,
        exit: exit_of(supervisor, exec, exit),
    })
}

/// The child's end of a stream first, the node's second (for input the other way round).
#[expect(clippy::type_complexity, reason = "two ends, each of which may be the null device or absent")]
fn stream(wanted: bool, input: bool) -> Result<((OwnedFd, Option<OwnedFd>), (OwnedFd, Option<OwnedFd>)), RuntimeError> {
    let null = || -> Result<OwnedFd, RuntimeError> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        Ok(file.map_err(failed("opening /dev/null"))?.into())
    };
    if !wanted {
        return Ok(((null()?, None), (null()?, None)));
    }
    let (read, write) = sys::pipe().map_err(failed("making a pipe"))?;
    Ok(if input { ((read, None), (null()?, Some(write))) } else { ((null()?, Some(read)), (write, None)) })
}

fn writer(fd: OwnedFd) -> Result<Box<dyn AsyncWrite + Send + Unpin>, RuntimeError> {
    set_nonblocking(&fd)?;
    Ok(Box::new(pipe::Sender::from_owned_fd(fd).map_err(failed("opening a stream"))?))
}

fn reader(fd: OwnedFd) -> Result<Box<dyn AsyncRead + Send + Unpin>, RuntimeError> {
    set_nonblocking(&fd)?;
    Ok(Box::new(pipe::Receiver::from_owned_fd(fd).map_err(failed("opening a stream"))?))
}

fn set_nonblocking(fd: &OwnedFd) -> Result<(), RuntimeError> {
    rustix::io::ioctl_fionbio(fd, true).map_err(|error| failed("opening a stream")(error.into()))
}

type ExitFuture = Pin<Box<dyn Future<Output = Result<crate::runtime::Exit, RuntimeError>> + Send>>;

fn exit_of(
    supervisor: &Arc<SupervisorClient>,
    exec: u64,
    exit: tokio::sync::oneshot::Receiver<crate::runtime::Exit>,
) -> ExitFuture {
    let guard = ExecGuard { supervisor: Arc::clone(supervisor), exec };
    Box::pin(async move {
        let ended = exit.await;
        ended.map_err(|_| RuntimeError::SupervisorLost(guard.supervisor.pod().to_owned()))
    })
}

fn terminal_session(master: OwnedFd, stdin: bool, exit: ExitFuture) -> Result<ExecSession, RuntimeError> {
    set_nonblocking(&master)?;
    let terminal = Arc::new(crate::kernel::sys::register(master).map_err(failed("opening the terminal"))?);
    let for_size = Arc::clone(&terminal);
    let resize = move |size: TerminalSize| -> io::Result<()> {
        let size = rustix::termios::Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(rustix::termios::tcsetwinsize(for_size.get_ref(), size)?)
    };
    Ok(ExecSession {
        stdin: stdin.then(|| Box::new(Terminal(Arc::clone(&terminal))) as Box<dyn AsyncWrite + Send + Unpin>),
        stdout: Some(Box::new(Terminal(terminal))),
        stderr: None,
        resize: Some(Arc::new(resize)),
        exit,
    })
}

pub(super) async fn attach(
    pod: Arc<Pod>,
    container: &str,
    request: AttachRequest,
) -> Result<ExecSession, RuntimeError> {
    let (stdout_read, stdout_write) = stream(request.stdout, false)?;
    let (stderr_read, stderr_write) = stream(request.stderr, false)?;
    let mut child_ends = Vec::new();
    if request.stdout {
        child_ends.push(stdout_write.0);
    }
    if request.stderr {
        child_ends.push(stderr_write.0);
    }
    let call = Call::Attach {
        container: container.to_owned(),
        stdin: request.stdin,
        stdout: request.stdout,
        stderr: request.stderr,
    };
    let (_, descriptors) = pod.supervisor.call(call, &borrowed(&child_ends)).await?;
    drop(child_ends);
    let input = descriptors.into_iter().next();
    let terminal = input.as_ref().is_some_and(rustix::termios::isatty);
    let (stdin, resize) = match input {
        Some(fd) if terminal => {
            let session = terminal_session(fd, true, Box::pin(std::future::pending()))?;
            (session.stdin, session.resize)
        }
        Some(fd) => (Some(writer(fd)?), None),
        None => (None, None),
    };
    let name = container.to_owned();
    Ok(ExecSession {
        stdin,
        stdout: stdout_read.1.map(reader).transpose()?,
        stderr: stderr_read.1.map(reader).transpose()?,
        resize,
        exit: Box::pin(async move {
            pod.wait_for_exit(&name).await.ok_or_else(|| RuntimeError::SupervisorLost(pod.sandbox.uid.clone()))
        }),
    })
}

/// Connects inside the Pod: to loopback first, then to the Pod's own address, then to IPv6 loopback. A Pod with a
/// kernel of its own has its sockets there: it is only reachable at its address, from outside.
pub(super) async fn dial(pod: &Pod, port: u16) -> Result<TcpStream, RuntimeError> {
    let own_kernel = Convention::of_handler(&pod.plan.spec.handler).is_some_and(Convention::has_own_kernel);
    if let (true, Some(ip)) = (own_kernel, pod.sandbox.ips.first()) {
        return tokio::time::timeout(CONNECT_DEADLINE, TcpStream::connect((*ip, port)))
            .await
            .map_err(|_| RuntimeError::Timeout("a connection to the Pod"))?
            .map_err(|source| RuntimeError::Kernel { step: format!("connecting to port {port} of the Pod"), source });
    }
    let mut addresses = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
    addresses.extend(pod.sandbox.ips.iter().map(|ip| SocketAddr::from((*ip, port))));
    addresses.push(SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
    let mut last = None;
    for address in addresses {
        let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(pod.socket(address.is_ipv6()).await?));
        match tokio::time::timeout(CONNECT_DEADLINE, socket.connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = last.or(Some(error)),
            Err(_) => return Err(RuntimeError::Timeout("a connection inside the Pod")),
        }
    }
    let source = last.unwrap_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused));
    Err(RuntimeError::Kernel { step: format!("connecting to port {port} inside the Pod"), source })
}

/// One side of a terminal for tokio. Terminals report the end of file as EIO.
struct Terminal(Arc<AsyncFd<OwnedFd>>);

impl AsyncRead for Terminal {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let spare = buffer.initialize_unfilled();
            match guard.try_io(|fd| Ok(rustix::io::read(fd.get_ref().as_fd(), &mut *spare)?)) {
                Ok(Ok(length)) => {
                    buffer.advance(length);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            match guard.try_io(|fd| Ok(rustix::io::write(fd.get_ref().as_fd(), bytes)?)) {
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A terminal cannot be closed in one direction; the end of input is a character that the client sends.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
