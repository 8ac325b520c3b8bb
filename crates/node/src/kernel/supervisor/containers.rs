//! Containers of the Pod: starting, signalling, attaching, noting how they end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::super::launch::{self, Report, Streams};
use super::super::oci;
use super::super::plan::ContainerPlan;
use super::super::sys::{self, Fork};
use super::super::wire::{self, Answer, Failure, Message};
use super::logs::{Log, Stream};
use super::streams::{Output, Sink};
use super::{Supervisor, records};
use crate::runtime::{ContainerState, Exit, PreviousAttempt};

/// Longest a child may take from fork to exec. It only mounts and calls the kernel.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// What a container's first process has of its own.
const NEW_PROCESS: libc::c_int = libc::CLONE_NEWNS | libc::CLONE_NEWPID;

/// The latest attempt of one container.
pub(super) struct Container {
    pub(super) plan: ContainerPlan,
    pub(super) state: ContainerState,
    /// While it runs.
    pub(super) pid: Option<i32>,
    /// The way into its mounts, which stay as long as it is open.
    pub(super) mounts: Option<OwnedFd>,
    pub(super) outputs: Vec<Output>,
    pub(super) sinks: Vec<Sink>,
    /// The pipe or terminal to write input into.
    pub(super) input: Option<OwnedFd>,
    pub(super) log: Log,
    /// Of a container that another runtime isolates.
    pub(super) bundle: Option<(oci::Runtime, oci::Bundle)>,
    /// What the counter said when it started: it may be the whole Pod's.
    pub(super) oom_kills_before: u64,
}

impl Container {
    /// Reads what one output has and hands it on.
    pub(super) fn read_output(&mut self, index: usize, buffer: &mut [u8]) {
        let Some(output) = self.outputs.get_mut(index) else { return };
        match rustix::io::read(&output.fd, &mut *buffer) {
            Ok(0) => output.open = false,
            Ok(length) => {
                let bytes = buffer.get(..length).unwrap_or_default();
                // A full disk must not stop the container; what cannot be written is lost, the container goes on.
                let _ = output.lines.push(bytes, Timestamp::now(), &mut self.log);
                for sink in self.sinks.iter_mut().filter(|sink| sink.stream == output.stream) {
                    sink.push(bytes);
                }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // A terminal whose other side is closed answers EIO.
            Err(_) => output.open = false,
        }
        if !output.open {
            let _ = output.lines.finish(Timestamp::now(), &mut self.log);
        }
    }

    /// Reads everything that is there already.
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
            // The first process takes its whole process namespace along; the group is for what left it, if anything could.
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

impl Supervisor {
    /// Answers with a socket inside the Pod where a port is open already: who asks for a start is about to connect to it.
    pub(super) fn start_container(&mut self, descriptors: Vec<OwnedFd>) -> Result<(Answer, Option<OwnedFd>), Failure> {
        let file = descriptors.into_iter().next().ok_or_else(|| protocol("a start without its plan"))?;
        let plan: ContainerPlan = wire::read_memory_file(file).map_err(|error| protocol(&error.to_string()))?;
        let known = self.containers.iter().position(|container| container.state.name == plan.spec.name);
        if let Some(container) = known.and_then(|index| self.containers.get(index)) {
            if container.state.attempt == plan.spec.attempt {
                return Ok((Answer::Started(container.state.clone()), None));
            }
            if container.pid.is_some() {
                return Err(protocol("a new attempt while the last one still runs"));
            }
        }
        if self.ending.is_some() {
            return Err(protocol("the Pod is being removed"));
        }
        let previous = known.and_then(|index| self.containers.get(index)).and_then(previous_attempt);
        let container = match self.oci.clone() {
            Some(runtime) => self.launch_with(runtime, plan, previous)?,
            None => self.launch(plan, previous)?,
        };
        let state = container.state.clone();
        records::write_container(&self.plan.dir, &state)
            .map_err(|error| Failure::kernel("writing the container's record", &error))?;
        match known.and_then(|index| self.containers.get_mut(index)) {
            Some(slot) => *slot = container,
            None => self.containers.push(container),
        }
        let socket = state.port_open.then(|| self.open_socket(false).ok()).flatten();
        Ok((Answer::Started(state), socket))
    }

    fn launch(&mut self, plan: ContainerPlan, previous: Option<PreviousAttempt>) -> Result<Container, Failure> {
        let failed = |step: &'static str| move |error: io::Error| Failure::kernel(step, &error);
        let log = Log::new(&plan.spec.log);
        plan.cgroup.create().map_err(failed("making the container's control groups"))?;
        let (streams, mut ends) = open_streams(&plan).map_err(failed("making pipes"))?;
        let (report, child_report) = report_pair().map_err(failed("making a report socket"))?;
        let oom_kills_before = plan.cgroup.oom_kills();
        let become_container = |placed: bool| {
            let (pod, filter) = (&self.namespaces, &self.filter);
            launch::container_main(&self.plan, &plan, pod, &streams, &child_report, filter, placed)
        };
        let is_first = previous.is_none();
        let pid = self.start_process(&plan, is_first, &become_container).map_err(failed("forking"))?;
        drop((streams, child_report));
        let Started { terminal, mounts, port_open } =
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
            outputs: outputs.map_err(failed("preparing output"))?,
            sinks: Vec::new(),
            input: ends.input,
            log,
            bundle: None,
            oom_kills_before,
            plan,
        })
    }

    /// Starts a container's first process, which becomes what it is to be.
    fn start_process(&self, plan: &ContainerPlan, is_first: bool, become_container: &dyn Fn(bool)) -> io::Result<i32> {
        // What a container's start leaves in memory stays there, so those that start again and again get a copy. Without privilege,
        // closing the child to tracing would close us to the node. And nobody else may see the child, who could stop it and us.
        let can_lend = is_first
            && self.plan.ids.is_privileged()
            && self.namespaces.shared_processes.is_none()
            && plan.walls.pid_namespace;
        if can_lend && let Ok(lent) = lend_to(plan, become_container) {
            if !lent.is_whole {
                // Killed, or far too late. The node starts the Pod again.
                sys::exit_now(1);
            }
            // It closed its memory to tracing, which was ours. A score for the lack of memory it has of its own, as the kernel has it for
            // children of this kind.
            sys::set_dumpable(true)?;
            return Ok(lent.pid);
        }
        match self.fork_container(plan)? {
            (Fork::Child, placed) => {
                become_container(placed);
                sys::lent::end(127)
            }
            (Fork::Parent(pid), _) => Ok(pid),
        }
    }

    /// Forks into a mount namespace of its own, and into a process namespace: its own, or the one the Pod shares.
    fn fork_container(&self, plan: &ContainerPlan) -> io::Result<(Fork, bool)> {
        match &self.namespaces.shared_processes {
            Some((processes, _)) => {
                let forked = self.fork_into(processes.as_fd(), &plan.cgroup)?;
                if matches!(forked, (Fork::Child, _)) && sys::unshare(libc::CLONE_NEWNS).is_err() {
                    sys::exit_now(127);
                }
                Ok(forked)
            }
            None if plan.walls.pid_namespace => launch::fork_in_group(NEW_PROCESS, &plan.cgroup),
            None => launch::fork_in_group(libc::CLONE_NEWNS, &plan.cgroup),
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

    /// Joins a caller's pipes to the container's output; answers with the way in.
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
            // The first caller's end of input is the container's.
            return Ok(container.input.take());
        }
        let copy = container.input.as_ref().map(OwnedFd::try_clone).transpose();
        copy.map_err(|error| Failure::kernel("attaching", &error))
    }

    /// Takes note of an ended child, whatever it was.
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
        // Without its record the exit would be lost with us, so there is nothing better to do than to go on and tell.
        let _ = records::write_container(&self.plan.dir, &container.state);
        let message =
            Message::Exited { container: container.state.name.clone(), attempt: container.state.attempt, exit };
        let cgroup = container.plan.cgroup.clone();
        // Closing the last way into a mount namespace unmounts it, which writes to the disk and takes its time: the node has
        // threads to spend on that.
        let mounts: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
        self.tell(None, &message, &mounts);
        let _ = cgroup.kill();
        // Removing may have to wait for the last dying process; the Pod's own removal tries again.
        let _ = cgroup.remove();
    }
}

/// One that cannot be born in its group, if it has one of its own, goes there by itself.
fn lend_to(plan: &ContainerPlan, become_container: &dyn Fn(bool)) -> io::Result<sys::lent::Lent> {
    let group = launch::open_group(&plan.cgroup);
    let placed = group.is_some();
    sys::lent::lend(NEW_PROCESS, group.as_ref().map(AsFd::as_fd), START_DEADLINE, &|| become_container(placed))
}

fn previous_attempt(container: &Container) -> Option<PreviousAttempt> {
    let state = &container.state;
    let exit = state.exit?;
    Some(PreviousAttempt { id: state.id.clone(), attempt: state.attempt, started_at: state.started_at, exit })
}

pub(super) fn protocol(message: &str) -> Failure {
    Failure::Protocol { message: message.to_owned() }
}

/// The exit as Kubernetes tells it: a signal is 128 and its number.
pub(super) fn exit_of(status: libc::c_int, oom_killed: bool, finished_at: Timestamp) -> Exit {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let oom_killed = oom_killed && signal == libc::SIGKILL;
        return Exit { code: 128 + signal, signal: Some(signal), oom_killed, finished_at };
    }
    Exit { code: libc::WEXITSTATUS(status), signal: None, oom_killed, finished_at }
}

/// A socket pair whose far end the child closes by exec.
pub(super) fn report_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// What a child handed out before exec.
#[derive(Default)]
pub(super) struct Started {
    pub(super) terminal: Option<OwnedFd>,
    pub(super) mounts: Option<OwnedFd>,
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
        match wire::receive::<Report>(report) {
            Ok(None) => return Ok(started),
            Ok(Some((Report::Terminal, descriptors))) => started.terminal = descriptors.into_iter().next(),
            Ok(Some((Report::Prepared { port_open }, descriptors))) => {
                started.mounts = descriptors.into_iter().next();
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
