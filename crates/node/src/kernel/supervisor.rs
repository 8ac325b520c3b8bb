//! The small parent process of one Pod: it creates the Pod's namespaces, forks its containers, writes their output to
//! logs, records their exits, and serves the node on a socket. It outlives the node.
//!
//! Single-threaded on purpose: it forks and changes namespaces, and it should cost next to nothing while idle.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::kernel::container::launch::PodNamespaces;
use crate::kernel::container::oci;
use crate::kernel::container::seccomp::Filters;
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::net;
use crate::kernel::sys;
use crate::runtime::PodSandbox;

pub(crate) mod client;
mod containers;
mod execs;
mod host_mounts;
mod logs;
mod oci_containers;
mod pause;
pub(crate) mod plan;
mod pod;
pub(crate) mod protocol;
pub(crate) mod records;
pub(crate) mod spawner;
mod streams;

use containers::Container;
use execs::RunningExec;
use plan::{PodBasePlan, PodPlan};
use pod::PodBase;
use protocol::{Call, Failure, MAX_PACKET, Message, Request, Response, Setup};

/// The listening socket in the Pod's folder.
pub(crate) const SOCKET: &str = "supervisor.sock";

/// A connection of a peer, usually the node: the socket that the supervisor was started with, or one accepted on the
/// named socket after the node's restart.
struct Connection {
    id: u64,
    socket: OwnedFd,
    open: bool,
}

struct Supervisor {
    plan: PodPlan,
    sandbox: PodSandbox,
    namespaces: PodNamespaces,
    /// The supervisor's own pid namespace, to return to after forking into a container's.
    own_pid_namespace: OwnedFd,
    own_net_namespace: OwnedFd,
    /// The host's mount namespace, if the supervisor has one of its own.
    host_mounts: Option<OwnedFd>,
    /// The OCI runtime that isolates the containers, if it is not the built-in isolation.
    oci: Option<oci::OciRuntime>,
    filters: Filters,
    listener: OwnedFd,
    signals: OwnedFd,
    connections: Vec<Connection>,
    next_connection: u64,
    containers: Vec<Container>,
    execs: Vec<RunningExec>,
    /// Set by a shutdown: the connection and request to respond to once everything is gone, before the supervisor
    /// exits.
    shutdown: Option<(u64, u64)>,
    /// Whether freed memory should be returned to the kernel once the supervisor is idle.
    trim_pending: bool,
    /// Buffer for containers' output. Packets are read into memory that is freed again: a supervisor is idle most of
    /// its life.
    buffer: Vec<u8>,
}

/// Idle time before freed memory is returned to the kernel. A short-lived Pod never pays for that.
const TRIM_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Maximum number of bytes of a container's output that is read at a time.
const OUTPUT_BUFFER: usize = 16 * 1024;

/// Runs a supervisor until its Pod is removed. It receives its plans on `control`, a connected socket.
pub(crate) fn main(control: OwnedFd, filters: Filters) -> i32 {
    match set_up(&control, filters) {
        Ok(Some(mut supervisor)) => {
            let ready = Response::Ready(supervisor.sandbox.clone());
            // If the node has died meanwhile, its next process connects through the socket in the Pod's folder.
            let _ = protocol::send(&control, &Message::Response { id: 0, response: ready }, &[]);
            supervisor.add_connection(control);
            supervisor.serve()
        }
        // The supervisor was kept ready for a Pod and never needed.
        Ok(None) => 0,
        Err((step, error)) => {
            let failure = Failure::Kernel {
                step: if error.raw_os_error().is_some() { step.to_owned() } else { format!("{step} ({error})") },
                errno: error.raw_os_error().unwrap_or(libc::EIO),
            };
            let _ = protocol::send(&control, &Message::Response { id: 0, response: Response::Failed(failure) }, &[]);
            1
        }
    }
}

/// Creates the base, waits for the plan of a Pod, and creates the Pod on that base. `None` when the node closes the
/// connection before.
fn set_up(control: &OwnedFd, filters: Filters) -> StepResult<Option<Supervisor>> {
    sys::ignore_sigpipe();
    let signals = sys::signal_descriptor(&[libc::SIGCHLD, libc::SIGTERM]).step("preparing signals")?;
    rustix::net::sockopt::set_socket_send_buffer_size(control, 4 * MAX_PACKET).step("sizing the control socket")?;
    sys::set_child_subreaper().step("becoming a sub-reaper")?;
    let Some((Setup::Base { answer }, file)) = receive_setup(control)? else { return Ok(None) };
    let plan: PodBasePlan = protocol::read_memory_file(file).step("reading the plan")?;
    let base = match PodBase::create(&plan) {
        Ok(base) => base,
        Err(error) => {
            pod::leave_cgroups(&plan);
            return Err(error);
        }
    };
    let supervisor = wait_for_pod(control, answer, base, signals, filters);
    if !matches!(supervisor, Ok(Some(_))) {
        // The node may be gone and unable to remove the cgroups.
        pod::leave_cgroups(&plan);
    }
    supervisor
}

/// Waits for the Pod's plan and creates the Pod; `None` when the node closes the connection before.
fn wait_for_pod(
    control: &OwnedFd,
    answer: bool,
    base: PodBase,
    signals: OwnedFd,
    filters: Filters,
) -> StepResult<Option<Supervisor>> {
    if answer {
        let ready = Message::Response { id: 0, response: Response::Done };
        if protocol::send(control, &ready, &[]).is_err() {
            return Ok(None);
        }
        sys::trim_heap();
    }
    let Some((Setup::Pod, file)) = receive_setup(control)? else { return Ok(None) };
    let plan: PodPlan = protocol::read_memory_file(file).step("reading the plan")?;
    start(plan, base, signals, filters).map(Some)
}

/// Receives one set-up message with its memory file; `None` when the connection is closed.
fn receive_setup(control: &OwnedFd) -> StepResult<Option<(Setup, OwnedFd)>> {
    loop {
        match protocol::receive::<Setup>(control) {
            Ok(Some((setup, descriptors))) => {
                let file = descriptors.into_iter().next();
                let file = file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADMSG)).step("reading the plan")?;
                return Ok(Some((setup, file)));
            }
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => return Ok(None),
            Err(error) => return Err(("waiting for the Pod's plan", error)),
        }
    }
}

fn start(plan: PodPlan, mut base: PodBase, signals: OwnedFd, filters: Filters) -> StepResult<Supervisor> {
    let oci = oci::OciRuntime::of(&plan)
        .map_err(|failure| ("finding the runtime", io::Error::other(format!("{failure:?}"))))?;
    let host_mounts = pod::configure(&plan, &mut base.namespaces)?;
    if !plan.ids.is_privileged() {
        // Without privilege the supervisor cannot return to the host's network namespace, and does not need it, so it
        // stays in the Pod's.
        sys::setns(base.namespaces.net.as_fd(), libc::CLONE_NEWNET).step("joining the network namespace")?;
    }
    let listener = listen(&plan.dir).step("listening on the Pod's socket")?;
    let (first_host_id, id_count) = plan.ids.host_range();
    let sandbox = PodSandbox {
        uid: plan.spec.uid.clone(),
        ips: vec![plan.address.into()],
        first_host_id,
        id_count,
        supervisor_pid: std::process::id(),
        weaknesses: plan.weaknesses.clone(),
    };
    records::write_supervisor(&plan.dir, &sandbox, &plan.spec).step("writing the supervisor's record")?;
    Ok(Supervisor {
        plan,
        sandbox,
        namespaces: base.namespaces,
        own_pid_namespace: base.own_pid_namespace,
        own_net_namespace: base.own_net_namespace,
        host_mounts,
        oci,
        filters,
        listener,
        signals,
        connections: Vec::new(),
        next_connection: 0,
        containers: Vec::new(),
        execs: Vec::new(),
        shutdown: None,
        trim_pending: true,
        buffer: vec![0; OUTPUT_BUFFER],
    })
}

/// The socket is bound by a relative name: absolute paths may be longer than a socket address.
fn listen(dir: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::process::chdir(dir)?;
    match fs::remove_file(SOCKET) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let previous = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &SocketAddrUnix::new(SOCKET)?);
    rustix::process::umask(previous);
    bound?;
    rustix::net::listen(&socket, 16)?;
    rustix::process::chdir("/")?;
    Ok(socket)
}

/// The owner of a ready descriptor.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Signals,
    Connection(u64),
    Output { container: usize, stream: usize },
    Sink { container: usize, sink: usize },
}

impl Supervisor {
    fn add_connection(&mut self, socket: OwnedFd) {
        self.next_connection += 1;
        self.connections.push(Connection { id: self.next_connection, socket, open: true });
    }

    /// Serves until the Pod has been shut down.
    fn serve(&mut self) -> i32 {
        loop {
            if let Some((connection, request)) = self.shutdown
                && self.containers.iter().all(|container| container.pid.is_none())
                && self.execs.is_empty()
            {
                self.clean_up();
                self.respond(connection, request, Response::Done, &[]);
                return 0;
            }
            let ready = self.wait();
            if ready.is_empty() && std::mem::take(&mut self.trim_pending) {
                sys::trim_heap();
            }
            for (source, ready) in ready {
                self.handle(source, ready);
            }
            self.connections.retain(|connection| connection.open);
        }
    }

    fn wait(&self) -> Vec<(Source, PollFlags)> {
        let mut sources = vec![Source::Listener, Source::Signals];
        let mut set = vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
        for connection in &self.connections {
            sources.push(Source::Connection(connection.id));
            set.push(PollFd::new(&connection.socket, PollFlags::IN));
        }
        for (index, container) in self.containers.iter().enumerate() {
            for (stream, output) in container.outputs.iter().enumerate() {
                sources.push(Source::Output { container: index, stream });
                set.push(PollFd::new(&output.fd, PollFlags::IN));
            }
            for (sink, attached) in container.sinks.iter().enumerate() {
                sources.push(Source::Sink { container: index, sink });
                set.push(PollFd::new(&attached.fd, attached.interest()));
            }
        }
        match poll(&mut set, self.trim_pending.then_some(&TRIM_DELAY)) {
            Ok(_) => {
                let ready = set.iter().map(PollFd::revents).collect::<Vec<_>>();
                sources.into_iter().zip(ready).filter(|(_, flags)| !flags.is_empty()).collect()
            }
            Err(_) => Vec::new(),
        }
    }

    fn handle(&mut self, source: Source, ready: PollFlags) {
        match source {
            Source::Listener => {
                let flags = SocketFlags::CLOEXEC;
                if let Ok(socket) = rustix::net::accept_with(&self.listener, flags) {
                    // With a large buffer, a peer that does not read does not block the supervisor.
                    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4 * MAX_PACKET);
                    self.add_connection(socket);
                }
            }
            Source::Signals => self.handle_signals(),
            Source::Connection(id) => self.handle_connection(id),
            Source::Output { container, stream } => {
                if let Some(container) = self.containers.get_mut(container) {
                    container.read_output(stream, &mut self.buffer);
                }
            }
            Source::Sink { container, sink } => {
                if let Some(container) = self.containers.get_mut(container) {
                    container.flush_sink(sink, ready);
                }
            }
        }
        for container in &mut self.containers {
            container.drop_closed();
        }
    }

    fn handle_signals(&mut self) {
        let mut info = [0u8; 128];
        let mut terminate = false;
        while let Ok(length) = rustix::io::read(&self.signals, &mut info) {
            if length < 4 {
                break;
            }
            let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            terminate |= number == libc::SIGTERM as u32;
        }
        while let Ok(Some((pid, status))) = sys::reap_any() {
            self.note_exit(pid, status);
        }
        if terminate && self.shutdown.is_none() {
            self.shut_down(0, 0);
        }
    }

    fn handle_connection(&mut self, id: u64) {
        let Some(connection) = self.connections.iter().find(|connection| connection.id == id) else { return };
        match protocol::receive::<Request>(&connection.socket) {
            Ok(Some((request, descriptors))) => self.call(id, request, descriptors),
            Ok(None) => self.close_connection(id),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.respond(id, 0, Response::Failed(Failure::Protocol { message: error.to_string() }), &[]);
            }
            Err(_) => self.close_connection(id),
        }
    }

    fn close_connection(&mut self, id: u64) {
        if let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) {
            connection.open = false;
        }
        self.forget_exec_peers(id);
        let no_connections = self.connections.iter().all(|connection| !connection.open);
        if no_connections && self.plan.ends_with_node && self.shutdown.is_none() {
            self.shut_down(0, 0);
        }
    }

    fn call(&mut self, connection: u64, request: Request, descriptors: Vec<OwnedFd>) {
        let id = request.id;
        let result = match request.call {
            Call::Start => self.start_container(descriptors),
            Call::Signal { container, signal } => {
                self.signal_container(&container, signal).map(|()| (Response::Done, None))
            }
            Call::Kill { container } => self.kill_container(&container).map(|()| (Response::Done, None)),
            Call::Exec(exec) => {
                self.start_exec(connection, id, exec, descriptors).map(|terminal| (Response::Done, terminal))
            }
            Call::KillExec { exec } => {
                self.kill_exec(connection, exec);
                Ok((Response::Done, None))
            }
            Call::Attach { container, stdin, stdout, stderr } => {
                self.attach(&container, stdin, stdout, stderr, descriptors).map(|input| (Response::Done, input))
            }
            Call::Socket { ipv6 } => self.open_socket(ipv6).map(|socket| (Response::Done, Some(socket))),
            Call::PacketFilter => net::open_filter_socket()
                .map(|socket| (Response::Done, Some(socket)))
                .map_err(|error| Failure::kernel("opening the packet filter inside the Pod", &error)),
            Call::State => Ok((self.state(), None)),
            Call::Shutdown => {
                self.shut_down(connection, id);
                return;
            }
        };
        match result {
            Ok((response, descriptor)) => {
                let descriptors = descriptor.iter().map(AsFd::as_fd).collect::<Vec<_>>();
                self.respond(connection, id, response, &descriptors);
            }
            Err(failure) => self.respond(connection, id, Response::Failed(failure), &[]),
        }
        self.trim_pending = true;
    }

    fn respond(&mut self, connection: u64, id: u64, response: Response, descriptors: &[BorrowedFd<'_>]) {
        self.send(Some(connection), &Message::Response { id, response }, descriptors);
    }

    /// Sends to one connection, or to all. A peer that cannot receive is disconnected: it will reconnect and ask for
    /// the state.
    fn send(&mut self, to: Option<u64>, message: &Message, descriptors: &[BorrowedFd<'_>]) {
        for connection in &mut self.connections {
            if to.is_none_or(|id| id == connection.id)
                && protocol::send(&connection.socket, message, descriptors).is_err()
            {
                connection.open = false;
            }
        }
    }

    fn state(&self) -> Response {
        let containers = self.containers.iter().map(|container| container.state.clone()).collect();
        Response::State { sandbox: self.sandbox.clone(), containers }
    }

    /// A socket created inside the Pod's network namespace; the process that connects it can be in any namespace.
    fn open_socket(&self, ipv6: bool) -> Result<OwnedFd, Failure> {
        let failed = |error: io::Error| Failure::kernel("opening a socket inside the Pod", &error);
        let open = || {
            let family = if ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        };
        if !self.plan.ids.is_privileged() {
            return open().map_err(|error| failed(error.into()));
        }
        sys::setns(self.namespaces.net.as_fd(), libc::CLONE_NEWNET).map_err(failed)?;
        let socket = open();
        return_to(self.own_net_namespace.as_fd(), libc::CLONE_NEWNET);
        socket.map_err(|error| failed(error.into()))
    }

    fn shut_down(&mut self, connection: u64, request: u64) {
        self.shutdown = Some((connection, request));
        for container in &self.containers {
            container.kill();
        }
        for exec in &self.execs {
            let _ = sys::kill(exec.pid, libc::SIGKILL);
        }
        if let Some((_, holder)) = &self.namespaces.shared_processes {
            // All processes left in the shared pid namespace are killed with its first process.
            let _ = sys::kill(*holder, libc::SIGKILL);
        }
    }

    fn clean_up(&mut self) {
        for container in &self.containers {
            let _ = container.plan.cgroup.remove();
        }
        if self.plan.ends_with_node && self.connections.iter().all(|connection| !connection.open) {
            // No node is connected that could remove the Pod's cgroups after the supervisor's exit.
            pod::leave_cgroups(&self.plan);
        }
    }
}

/// Returns to one of the supervisor's own namespaces, or exits: in the Pod's namespace every later call would act, with
/// the supervisor's privileges, where the sandbox decides. The node starts the Pod again.
fn return_to(own: BorrowedFd<'_>, kind: libc::c_int) {
    if sys::setns(own, kind).is_err() {
        sys::exit_now(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_that_cannot_return_to_its_namespace_exits() {
        let null = fs::File::open("/dev/null").unwrap();
        match sys::fork_with(0).unwrap() {
            sys::Fork::Child => {
                return_to(null.as_fd(), libc::CLONE_NEWNET);
                sys::exit_now(0)
            }
            sys::Fork::Parent(pid) => assert_eq!(libc::WEXITSTATUS(sys::wait_for(pid).unwrap()), 1),
        }
    }
}
