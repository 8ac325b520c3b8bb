//! The small parent process of one Pod: it made the Pod's namespaces, forks its containers, reads their output into logs,
//! notes how they end, and answers the node on a socket. It outlives the node.
//!
//! Single-threaded on purpose: it forks and changes namespaces, and it should cost next to nothing while idle.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::launch::PodNamespaces;
use super::net;
use super::oci;
use super::plan::{GroundPlan, PodPlan};
use super::sys;
use super::walls::{Named, Step};
use super::wire::{self, Answer, Begin, Call, Failure, MAX_PACKET, Message, Request};
use crate::runtime::PodSandbox;

mod containers;
mod execs;
mod logs;
mod oci_containers;
mod pause;
mod pod;
pub(crate) mod records;
mod streams;

use containers::Container;
use execs::RunningExec;
use pod::Ground;

/// The listening socket in the Pod's folder.
pub(crate) const SOCKET: &str = "supervisor.sock";

/// One peer: usually the node, over the socket it started us with or over the named one after its restart.
struct Connection {
    id: u64,
    socket: OwnedFd,
    open: bool,
}

struct Supervisor {
    plan: PodPlan,
    sandbox: PodSandbox,
    namespaces: PodNamespaces,
    /// Our own process namespace, to come back to after forking into a container's.
    own_pid_namespace: OwnedFd,
    own_net_namespace: OwnedFd,
    /// The program that isolates the containers, when it is not us.
    oci: Option<oci::Runtime>,
    filter: Vec<libc::sock_filter>,
    listener: OwnedFd,
    signals: OwnedFd,
    connections: Vec<Connection>,
    next_connection: u64,
    containers: Vec<Container>,
    execs: Vec<RunningExec>,
    /// Set by a shutdown: answer this request once everything is gone, then end.
    ending: Option<(u64, u64)>,
    /// Whether memory is kept that a waiting supervisor has no use for.
    untidy: bool,
    /// For what containers write. Packets are read into memory that is given back: a supervisor waits far longer than it works.
    buffer: Vec<u8>,
}

/// How long nothing happens before memory is given back. A Pod that ends soon never pays for that, and for having it again.
const TIDY_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Most that is read of a container's output at a time.
const OUTPUT_BUFFER: usize = 16 * 1024;

/// Runs as a supervisor until its Pod is removed. On `control`, a connected socket, it is told what to make.
pub(crate) fn main(control: OwnedFd, filter: Vec<libc::sock_filter>) -> i32 {
    match begin(&control, filter) {
        Ok(Some(mut supervisor)) => {
            let ready = Answer::Ready(supervisor.sandbox.clone());
            // A node that died meanwhile finds us by the socket in the Pod's folder.
            let _ = wire::send(&control, &Message::Answer { id: 0, answer: ready }, &[]);
            supervisor.add_connection(control);
            supervisor.serve()
        }
        // Kept ready, and never needed.
        Ok(None) => 0,
        Err((step, error)) => {
            let failure = Failure::Kernel {
                step: if error.raw_os_error().is_some() { step.to_owned() } else { format!("{step} ({error})") },
                errno: error.raw_os_error().unwrap_or(libc::EIO),
            };
            let _ = wire::send(&control, &Message::Answer { id: 0, answer: Answer::Failed(failure) }, &[]);
            1
        }
    }
}

/// Makes the ground, waits for the Pod that is to stand on it, and makes that. `None` when the node goes away before.
fn begin(control: &OwnedFd, filter: Vec<libc::sock_filter>) -> Step<Option<Supervisor>> {
    sys::ignore_broken_pipes();
    let signals = sys::signal_descriptor(&[libc::SIGCHLD, libc::SIGTERM]).step("preparing signals")?;
    rustix::net::sockopt::set_socket_send_buffer_size(control, 4 * MAX_PACKET).step("sizing the control socket")?;
    sys::set_child_subreaper().step("becoming a sub-reaper")?;
    let Some((Begin::Ground { answer }, file)) = receive_begin(control)? else { return Ok(None) };
    let plan: GroundPlan = wire::read_memory_file(file).step("reading the plan")?;
    let ground = match Ground::make(&plan) {
        Ok(ground) => ground,
        Err(error) => {
            pod::leave(&plan);
            return Err(error);
        }
    };
    let settled = settle(control, answer, ground, signals, filter);
    if !matches!(settled, Ok(Some(_))) {
        // Nobody may be there any more to do it for us.
        pod::leave(&plan);
    }
    settled
}

/// Waits for the Pod and makes it; `None` when the node goes away before.
fn settle(
    control: &OwnedFd,
    answer: bool,
    ground: Ground,
    signals: OwnedFd,
    filter: Vec<libc::sock_filter>,
) -> Step<Option<Supervisor>> {
    if answer {
        let ready = Message::Answer { id: 0, answer: Answer::Done };
        if wire::send(control, &ready, &[]).is_err() {
            return Ok(None);
        }
        sys::trim_heap();
    }
    let Some((Begin::Pod, file)) = receive_begin(control)? else { return Ok(None) };
    let plan: PodPlan = wire::read_memory_file(file).step("reading the plan")?;
    start(plan, ground, signals, filter).map(Some)
}

/// One message of the beginning with its memory file; `None` when nobody is there any more.
fn receive_begin(control: &OwnedFd) -> Step<Option<(Begin, OwnedFd)>> {
    loop {
        match wire::receive::<Begin>(control) {
            Ok(Some((begin, descriptors))) => {
                let file = descriptors.into_iter().next();
                let file = file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADMSG)).step("reading the plan")?;
                return Ok(Some((begin, file)));
            }
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => return Ok(None),
            Err(error) => return Err(("waiting for a Pod", error)),
        }
    }
}

fn start(plan: PodPlan, mut ground: Ground, signals: OwnedFd, filter: Vec<libc::sock_filter>) -> Step<Supervisor> {
    let oci =
        oci::Runtime::of(&plan).map_err(|failure| ("finding the runtime", io::Error::other(format!("{failure:?}"))))?;
    pod::settle(&plan, &mut ground.namespaces)?;
    if !plan.ids.is_privileged() {
        // Without privilege there is no way back into the host's network, and no need for it: stay inside.
        sys::setns(ground.namespaces.net.as_fd(), libc::CLONE_NEWNET).step("joining the network namespace")?;
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
        namespaces: ground.namespaces,
        own_pid_namespace: ground.own_pid_namespace,
        own_net_namespace: ground.own_net_namespace,
        oci,
        filter,
        listener,
        signals,
        connections: Vec::new(),
        next_connection: 0,
        containers: Vec::new(),
        execs: Vec::new(),
        ending: None,
        untidy: true,
        buffer: vec![0; OUTPUT_BUFFER],
    })
}

/// The name is bound relative to the folder: absolute paths may be longer than a socket address.
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

/// What a ready descriptor belongs to.
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

    /// Works until the Pod has been shut down.
    fn serve(&mut self) -> i32 {
        loop {
            if let Some((connection, request)) = self.ending
                && self.containers.iter().all(|container| container.pid.is_none())
                && self.execs.is_empty()
            {
                self.clean_up();
                self.answer(connection, request, Answer::Done, &[]);
                return 0;
            }
            let ready = self.wait();
            if ready.is_empty() && std::mem::take(&mut self.untidy) {
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
        match poll(&mut set, self.untidy.then_some(&TIDY_AFTER)) {
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
                    // A peer that does not read must not stop us.
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
        if terminate && self.ending.is_none() {
            self.shut_down(0, 0);
        }
    }

    fn handle_connection(&mut self, id: u64) {
        let Some(connection) = self.connections.iter().find(|connection| connection.id == id) else { return };
        match wire::receive::<Request>(&connection.socket) {
            Ok(Some((request, descriptors))) => self.call(id, request, descriptors),
            Ok(None) => self.close_connection(id),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.answer(id, 0, Answer::Failed(Failure::Protocol { message: error.to_string() }), &[]);
            }
            Err(_) => self.close_connection(id),
        }
    }

    fn close_connection(&mut self, id: u64) {
        if let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) {
            connection.open = false;
        }
        self.forget_exec_peers(id);
        let alone = self.connections.iter().all(|connection| !connection.open);
        if alone && self.plan.ends_with_node && self.ending.is_none() {
            self.shut_down(0, 0);
        }
    }

    fn call(&mut self, connection: u64, request: Request, descriptors: Vec<OwnedFd>) {
        let id = request.id;
        let result = match request.call {
            Call::Start => self.start_container(descriptors),
            Call::Signal { container, signal } => {
                self.signal_container(&container, signal).map(|()| (Answer::Done, None))
            }
            Call::Kill { container } => self.kill_container(&container).map(|()| (Answer::Done, None)),
            Call::Exec(exec) => {
                self.start_exec(connection, id, exec, descriptors).map(|terminal| (Answer::Done, terminal))
            }
            Call::KillExec { exec } => {
                self.kill_exec(connection, exec);
                Ok((Answer::Done, None))
            }
            Call::Attach { container, stdin, stdout, stderr } => {
                self.attach(&container, stdin, stdout, stderr, descriptors).map(|input| (Answer::Done, input))
            }
            Call::Socket { ipv6 } => self.open_socket(ipv6).map(|socket| (Answer::Done, Some(socket))),
            Call::PacketFilter => net::open_filter_socket()
                .map(|socket| (Answer::Done, Some(socket)))
                .map_err(|error| Failure::kernel("opening the packet filter inside the Pod", &error)),
            Call::State => Ok((self.state(), None)),
            Call::Shutdown => {
                self.shut_down(connection, id);
                return;
            }
        };
        match result {
            Ok((answer, descriptor)) => {
                let descriptors = descriptor.iter().map(AsFd::as_fd).collect::<Vec<_>>();
                self.answer(connection, id, answer, &descriptors);
            }
            Err(failure) => self.answer(connection, id, Answer::Failed(failure), &[]),
        }
        self.untidy = true;
    }

    fn answer(&mut self, connection: u64, id: u64, answer: Answer, descriptors: &[std::os::fd::BorrowedFd<'_>]) {
        self.tell(Some(connection), &Message::Answer { id, answer }, descriptors);
    }

    /// Sends to one connection, or to all. A peer that cannot take it is closed: it will ask for the state again.
    fn tell(&mut self, to: Option<u64>, message: &Message, descriptors: &[std::os::fd::BorrowedFd<'_>]) {
        for connection in &mut self.connections {
            if to.is_none_or(|id| id == connection.id) && wire::send(&connection.socket, message, descriptors).is_err()
            {
                connection.open = false;
            }
        }
    }

    fn state(&self) -> Answer {
        let containers = self.containers.iter().map(|container| container.state.clone()).collect();
        Answer::State { sandbox: self.sandbox.clone(), containers }
    }

    /// A socket made inside the Pod's network namespace; who connects it, and from where, no longer matters.
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
        // Staying inside would make every later call wrong: ending takes the Pod down, which is the lesser harm.
        if let Err(error) = sys::setns(self.own_net_namespace.as_fd(), libc::CLONE_NEWNET) {
            return Err(failed(error));
        }
        socket.map_err(|error| failed(error.into()))
    }

    fn shut_down(&mut self, connection: u64, request: u64) {
        self.ending = Some((connection, request));
        for container in &self.containers {
            container.kill();
        }
        for exec in &self.execs {
            let _ = sys::kill(exec.pid, libc::SIGKILL);
        }
        if let Some((_, holder)) = &self.namespaces.shared_processes {
            // Whatever is left in the shared namespace goes with its first process.
            let _ = sys::kill(*holder, libc::SIGKILL);
        }
    }

    fn clean_up(&mut self) {
        for container in &self.containers {
            let _ = container.plan.cgroup.remove();
        }
        if self.plan.ends_with_node && self.connections.iter().all(|connection| !connection.open) {
            // Nobody is left to remove the Pod's groups once we are gone.
            pod::leave(&self.plan);
        }
    }
}
