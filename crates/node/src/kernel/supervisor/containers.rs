//! Containers of the Pod: starting, signalling, attaching, and recording their exits.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::logs::{Log, Stream};
use super::streams::{Output, Sink};
use super::{Supervisor, host_mounts, records};
use crate::changes::copy::LOCK;
use crate::kernel::container::launch::{self, Report, Streams};
use crate::kernel::container::oci;
use crate::kernel::supervisor::plan::ContainerPlan;
use crate::kernel::supervisor::protocol::{self, Failure, Message, Response};
use crate::kernel::sys::{self, Fork};
use crate::runtime::{ContainerState, Exit, PreviousAttempt};

/// Timeout from fork to exec. The child only mounts and calls the kernel.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// The namespaces of a container's first process.
const NEW_NAMESPACES: libc::c_int = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// The latest attempt of one container.
pub(super) struct Container {
    pub(super) plan: ContainerPlan,
    pub(super) state: ContainerState,
    /// `None` when the container has exited.
    pub(super) pid: Option<i32>,
    /// Its mount namespace, which exists as long as the descriptor is open.
    pub(super) mounts: Option<OwnedFd>,
    /// The file for its termination message, unless it is in its layer's folder.
    pub(super) message: Option<File>,
    pub(super) outputs: Vec<Output>,
    pub(super) sinks: Vec<Sink>,
    /// The pipe or terminal for the container's input.
    pub(super) input: Option<OwnedFd>,
    /// Locks of the copies that the container has mounted.
    pub(super) copy_locks: Vec<File>,
    pub(super) log: Log,
    /// Set for a container of an OCI runtime.
    pub(super) bundle: Option<(oci::OciRuntime, oci::Bundle)>,
    /// The OOM counter at the start; it may be the whole Pod's.
    pub(super) oom_kills_before: u64,
}

impl Container {
    /// Reads available output and passes it to the log and the attached clients.
    pub(super) fn read_output(&mut self, index: usize, buffer: &mut [u8]) {
        let Some(output) = self.outputs.get_mut(index) else { return };
        match rustix::io::read(&output.fd, &mut *buffer) {
            Ok(0) => output.open = false,
            Ok(length) => {
                let bytes = buffer.get(..length).unwrap_or_default();
                // A full disk must not stop the container: output that cannot be written is lost.
                let _ = output.lines.push(bytes, Timestamp::now(), &mut self.log);
                for sink in self.sinks.iter_mut().filter(|sink| sink.stream == output.stream) {
                    sink.push(bytes);
                }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // A terminal whose other side is closed returns EIO.
            Err(_) => output.open = false,
        }
        if !output.open {
            let _ = output.lines.finish(Timestamp::now(), &mut self.log);
        }
    }

    /// Reads all output that is available.
    fn drain(&mut self, buffer: &mut [u8]) {
        for index in 0..self.outputs.len() {
            loop {
                let ready = self.outputs.get(index).is_some_and(|output| {
                    output.open && {
                        let mut set = [PollFd::new(&output.fd, PollFlags::IN)];
                        poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
                    }
                });
                if !ready {
                    break;
                }
                self.read_output(index, buffer);
            }
        }
        for output in &mut self.outputs {
            let _ = output.lines.finish(Timestamp::now(), &mut self.log);
        }
    }

    pub(super) fn flush_sink(&mut self, index: usize, ready: PollFlags) {
        let Some(sink) = self.sinks.get_mut(index) else { return };
        if ready.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            sink.open = false;
        } else {
            sink.flush();
        }
    }

    pub(super) fn drop_closed(&mut self) {
        self.outputs.retain(|output| output.open);
        self.sinks.retain(|sink| sink.open);
    }

    pub(super) fn kill(&self) {
        if let Some(pid) = self.pid {
            if let Some((runtime, _)) = &self.bundle {
                runtime.kill(&self.plan.id, libc::SIGKILL);
            }
            // Killing the first process kills its pid namespace; the cgroup is for processes outside it, if any.
            let _ = sys::kill(pid, libc::SIGKILL);
            let _ = self.plan.cgroup.kill();
        }
    }
}

/// The supervisor's ends of a new process's streams.
pub(super) struct OwnEnds {
    pub(super) input: Option<OwnedFd>,
    pub(super) outputs: Vec<(OwnedFd, Stream)>,
}

/// Locks a container's copies of folders for as long as it is known: commands must not empty a copy that is mounted.
fn lock_copies(plan: &ContainerPlan) -> Result<Vec<File>, Failure> {
    let lock = |folder: &PathBuf| -> io::Result<File> {
        let file = File::open(folder.join(LOCK))?;
        match file.try_lock_shared() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(io::Error::other("its changes are being discarded")),
            Err(TryLockError::Error(error)) => Err(error),
        }
    };
    plan.copies.values().map(lock).collect::<io::Result<_>>().map_err(|error| Failure::kernel("locking a copy", &error))
}

impl Supervisor {
    /// Starts a container. If its port is open already, the response carries a socket inside the Pod, because the
    /// caller is about to connect.
    pub(super) fn start_container(
        &mut self,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Response, Option<OwnedFd>), Failure> {
        let file = descriptors.into_iter().next().ok_or_else(|| protocol("a start without its plan"))?;
        let plan: ContainerPlan = protocol::read_memory_file(file).map_err(|error| protocol(&error.to_string()))?;
        let known = self.containers.iter().position(|container| container.state.name == plan.spec.name);
        if let Some(container) = known.and_then(|index| self.containers.get(index)) {
            if container.state.attempt == plan.spec.attempt {
                return Ok((Response::Started(container.state.clone()), None));
            }
            if container.pid.is_some() {
                return Err(protocol("a new attempt while the last one still runs"));
            }
        }
        if self.shutdown.is_some() {
            return Err(protocol("the Pod is being removed"));
        }
        if let Some(host) = &self.host_mounts {
            host_mounts::attach(host, &plan)
                .map_err(|error| Failure::kernel("attaching the container's storage", &error))?;
        }
        let copy_locks = lock_copies(&plan)?;
        let previous = known.and_then(|index| self.containers.get(index)).and_then(previous_attempt);
        let mut container = match self.oci.clone() {
            Some(runtime) => self.launch_oci(runtime, plan, previous)?,
            None => self.launch(plan, previous)?,
        };
        container.copy_locks = copy_locks;
        let state = container.state.clone();
        records::write_container(&self.plan.dir, &state)
            .map_err(|error| Failure::kernel("writing the container's record", &error))?;
        match known.and_then(|index| self.containers.get_mut(index)) {
            Some(slot) => *slot = container,
            None => self.containers.push(container),
        }
        let socket = state.port_open.then(|| self.open_socket(false).ok()).flatten();
        Ok((Response::Started(state), socket))
    }

    fn launch(&mut self, plan: ContainerPlan, previous: Option<PreviousAttempt>) -> Result<Container, Failure> {
        let failed = |step: &'static str| move |error: io::Error| Failure::kernel(step, &error);
        let log = Log::new(&plan.spec.log);
        plan.cgroup.create().map_err(failed("making the container's control groups"))?;
        let (streams, mut ends) = open_streams(&plan).map_err(failed("making pipes"))?;
        let (report, child_report) = report_pair().map_err(failed("making a report socket"))?;
        let oom_kills_before = plan.cgroup.oom_kills();
        let become_container = |in_cgroup: bool| {
            let (pod, filter) = (&self.namespaces, self.filters.of(&plan.spec));
            launch::container_main(&self.plan, &plan, pod, &streams, &child_report, filter, in_cgroup)
        };
        let is_first_attempt = previous.is_none();
        let pid = self.start_process(&plan, is_first_attempt, &become_container).map_err(failed("forking"))?;
        drop((streams, child_report));
        records::remove_message(&self.plan.dir, &plan.spec.name);
        let Started { terminal, mounts, message, port_open } =
            wait_for_exec(pid, &report).inspect_err(|_| drop(plan.cgroup.remove()))?;
        if let Some(terminal) = terminal {
            let copy = terminal.try_clone().map_err(failed("copying the terminal"))?;
            ends = OwnEnds { input: Some(copy), outputs: vec![(terminal, Stream::Stdout)] };
        }
        let outputs =
            ends.outputs.into_iter().map(|(fd, stream)| Output::new(fd, stream)).collect::<io::Result<Vec<_>>>();
        let state = ContainerState {
            name: plan.spec.name.clone(),
            attempt: plan.spec.attempt,
            id: plan.id.clone(),
            pid: pid.unsigned_abs(),
            started_at: Timestamp::now(),
            exit: None,
            port_open,
            previous,
        };
        Ok(Container {
            state,
            pid: Some(pid),
            mounts,
            message: message.map(File::from),
            outputs: outputs.map_err(failed("preparing output"))?,
            sinks: Vec::new(),
            input: ends.input,
            copy_locks: Vec::new(),
            log,
            bundle: None,
            oom_kills_before,
            plan,
        })
    }

    /// Starts a container's first process, which runs `become_container`.
    fn start_process(
        &self,
        plan: &ContainerPlan,
        is_first_attempt: bool,
        become_container: &dyn Fn(bool),
    ) -> io::Result<i32> {
        // A vfork-like child is used where it is safe. Memory that a container's start leaves allocated is never freed,
        // so containers that restart get a normal fork. Without privilege, making the child non-dumpable would make the
        // supervisor inaccessible to the node. And the child must have a pid namespace of its own: another process of
        // the Pod that could see it could stop it, and with it the supervisor.
        let can_vfork = is_first_attempt
            && self.plan.ids.is_privileged()
            && self.namespaces.shared_processes.is_none()
            && plan.isolation.pid_namespace;
        if can_vfork && let Ok(child) = vfork_container(plan, become_container) {
            if !child.memory_intact {
                // The child was killed or timed out. The node starts the Pod again.
                sys::exit_now(1);
            }
            // The child made the shared memory non-dumpable. Its OOM score is its own: the kernel does not share the
            // score with vfork children.
            sys::set_dumpable(true)?;
            return Ok(child.pid);
        }
        match self.fork_container(plan)? {
            (Fork::Child, in_cgroup) => {
                become_container(in_cgroup);
                sys::vfork::exit_child(127)
            }
            (Fork::Parent(pid), _) => Ok(pid),
        }
    }

    /// Forks into a mount namespace of its own, and into a pid namespace: its own, or the one the Pod shares.
    fn fork_container(&self, plan: &ContainerPlan) -> io::Result<(Fork, bool)> {
        match &self.namespaces.shared_processes {
            Some((processes, _)) => {
                let forked = self.fork_into(processes.as_fd(), &plan.cgroup)?;
                if matches!(forked, (Fork::Child, _)) && sys::unshare(libc::CLONE_NEWNS).is_err() {
                    sys::exit_now(127);
                }
                Ok(forked)
            }
            None if plan.isolation.pid_namespace => launch::fork_in_cgroup(NEW_NAMESPACES, &plan.cgroup),
            None => launch::fork_in_cgroup(libc::CLONE_NEWNS, &plan.cgroup),
        }
    }

    pub(super) fn signal_container(&mut self, name: &str, signal: i32) -> Result<(), Failure> {
        let container = self.running(name)?;
        if let Some((runtime, _)) = &container.bundle
            && runtime.kill(&container.plan.id, signal)
        {
            return Ok(());
        }
        let pid = container.pid.unwrap_or_default();
        sys::kill(pid, signal).map_err(|error| Failure::kernel("signalling the container", &error))
    }

    pub(super) fn kill_container(&mut self, name: &str) -> Result<(), Failure> {
        self.running(name)?.kill();
        Ok(())
    }

    pub(super) fn running(&mut self, name: &str) -> Result<&mut Container, Failure> {
        self.containers
            .iter_mut()
            .find(|container| container.state.name == name && container.pid.is_some())
            .ok_or_else(|| Failure::NotRunning { container: name.to_owned() })
    }

    /// Connects a client's pipes to the container's output; returns the container's input.
    pub(super) fn attach(
        &mut self,
        name: &str,
        stdin: bool,
        stdout: bool,
        stderr: bool,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<OwnedFd>, Failure> {
        let container = self.running(name)?;
        let wanted = [(stdout, Stream::Stdout), (stderr, Stream::Stderr)];
        let streams = wanted.into_iter().filter_map(|(asked, stream)| asked.then_some(stream));
        for (stream, fd) in streams.zip(descriptors) {
            container.sinks.push(Sink::new(fd, stream).map_err(|error| Failure::kernel("attaching", &error))?);
        }
        if !stdin {
            return Ok(None);
        }
        if container.plan.spec.stdin_once && !container.plan.spec.tty {
            // With stdinOnce, the end of the first client's input is the end of the container's.
            return Ok(container.input.take());
        }
        let copy = container.input.as_ref().map(OwnedFd::try_clone).transpose();
        copy.map_err(|error| Failure::kernel("attaching", &error))
    }

    /// Records the exit of a child: a container or a command.
    pub(super) fn note_exit(&mut self, pid: i32, status: libc::c_int) {
        let now = Timestamp::now();
        let buffer = &mut self.buffer;
        let Some(container) = self.containers.iter_mut().find(|container| container.pid == Some(pid)) else {
            self.note_exec_exit(pid, exit_of(status, false, now));
            return;
        };
        container.drain(buffer);
        container.pid = None;
        let mounts = container.mounts.take();
        container.outputs.clear();
        container.sinks.clear();
        container.input = None;
        let exit = exit_of(status, container.plan.cgroup.oom_kills() > container.oom_kills_before, now);
        container.state.exit = Some(exit);
        if let Some((runtime, bundle)) = container.bundle.take() {
            runtime.delete(&container.plan.id);
            drop(bundle);
        }
        if let Some(message) = container.message.take() {
            // A full disk loses the message and no more.
            let _ = records::write_message(&self.plan.dir, &container.state.name, &message);
        }
        // If the record cannot be written, the exit is lost with the supervisor; it is still sent to the node.
        let _ = records::write_container(&self.plan.dir, &container.state);
        let message =
            Message::Exited { container: container.state.name.clone(), attempt: container.state.attempt, exit };
        let cgroup = container.plan.cgroup.clone();
        // Closing the last descriptor of a mount namespace unmounts it, which writes to the disk and takes time: the
        // node has threads for that.
        let mounts: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
        self.send(None, &message, &mounts);
        let _ = cgroup.kill();
        // May fail while the last process is still dying; the removal of the Pod tries again.
        let _ = cgroup.remove();
    }
}

/// Starts the container like vfork. A child that cannot be created in its cgroup, if it has one of its own, moves there
/// by itself.
fn vfork_container(plan: &ContainerPlan, become_container: &dyn Fn(bool)) -> io::Result<sys::vfork::VforkChild> {
    let group = launch::open_cgroup(&plan.cgroup);
    let in_cgroup = group.is_some();
    sys::vfork::spawn(NEW_NAMESPACES, group.as_ref().map(AsFd::as_fd), START_DEADLINE, &|| become_container(in_cgroup))
}

fn previous_attempt(container: &Container) -> Option<PreviousAttempt> {
    let state = &container.state;
    let exit = state.exit?;
    Some(PreviousAttempt { id: state.id.clone(), attempt: state.attempt, started_at: state.started_at, exit })
}

pub(super) fn protocol(message: &str) -> Failure {
    Failure::Protocol { message: message.to_owned() }
}

/// The exit as Kubernetes reports it: a signal is 128 plus its number.
pub(super) fn exit_of(status: libc::c_int, oom_killed: bool, finished_at: Timestamp) -> Exit {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let oom_killed = oom_killed && signal == libc::SIGKILL;
        return Exit { code: 128 + signal, signal: Some(signal), oom_killed, finished_at };
    }
    Exit { code: libc::WEXITSTATUS(status), signal: None, oom_killed, finished_at }
}

/// A socket pair whose far end is closed by the child's exec.
pub(super) fn report_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// What a child sent before exec.
#[derive(Default)]
pub(super) struct Started {
    pub(super) terminal: Option<OwnedFd>,
    pub(super) mounts: Option<OwnedFd>,
    message: Option<OwnedFd>,
    port_open: bool,
}

/// Waits until the child has reached exec. A failed child is reaped.
pub(super) fn wait_for_exec(pid: i32, report: &OwnedFd) -> Result<Started, Failure> {
    let mut started = Started::default();
    let limit = Timespec { tv_sec: START_DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let failure = loop {
        let mut set = [PollFd::new(report, PollFlags::IN)];
        match poll(&mut set, Some(&limit)) {
            Ok(0) => break Failure::Kernel { step: "reaching exec".to_owned(), errno: libc::ETIMEDOUT },
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => break Failure::kernel("waiting for exec", &error.into()),
            Ok(_) => {}
        }
        match protocol::receive::<Report>(report) {
            Ok(None) => return Ok(started),
            Ok(Some((Report::Terminal, descriptors))) => started.terminal = descriptors.into_iter().next(),
            Ok(Some((Report::Prepared { port_open }, descriptors))) => {
                let mut descriptors = descriptors.into_iter();
                (started.mounts, started.message) = (descriptors.next(), descriptors.next());
                started.port_open = port_open;
            }
            Ok(Some((Report::Failed(failure), _))) => break failure,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Failure::kernel("waiting for exec", &error),
        }
    };
    let _ = sys::kill(pid, libc::SIGKILL);
    let _ = sys::wait_for(pid);
    Err(failure)
}

pub(super) fn open_streams(plan: &ContainerPlan) -> io::Result<(Streams, OwnEnds)> {
    if plan.spec.tty {
        let none = OwnEnds { input: None, outputs: Vec::new() };
        return Ok((Streams::Terminal { rows: 24, columns: 80 }, none));
    }
    let (stdin, input) = if plan.spec.stdin {
        let (read, write) = sys::pipe()?;
        (read, Some(write))
    } else {
        (std::fs::File::open("/dev/null")?.into(), None)
    };
    let (out_read, stdout) = sys::pipe()?;
    let (err_read, stderr) = sys::pipe()?;
    let outputs = vec![(out_read, Stream::Stdout), (err_read, Stream::Stderr)];
    Ok((Streams::Pipes { stdin, stdout, stderr }, OwnEnds { input, outputs }))
}
