//! Commands run in a container that already runs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use super::super::cgroup::CgroupPlan;
use super::super::launch::{self, ContainerNamespaces, Program, Streams};
use super::super::sys::{self, Fork};
use super::super::wire::{ExecCall, Failure, Message};
use super::Supervisor;
use super::containers::{Started, protocol, report_pair, wait_for_exec};
use crate::runtime::Exit;

/// A command that has not ended.
pub(super) struct RunningExec {
    pub(super) pid: i32,
    /// Who asked, and under which request id, until that connection closes.
    peer: Option<(u64, u64)>,
    /// Another runtime's note of the command's own pid, when `pid` is the program that runs it.
    inner: Option<PathBuf>,
}

impl RunningExec {
    pub(super) fn new(pid: i32, connection: u64, request: u64, inner: Option<PathBuf>) -> Self {
        Self { pid, peer: Some((connection, request)), inner }
    }
}

impl Supervisor {
    /// Starts a command; gives its terminal if it asked for one.
    pub(super) fn start_exec(
        &mut self,
        connection: u64,
        request: u64,
        call: ExecCall,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<OwnedFd>, Failure> {
        let failed = |step: &'static str| move |error: io::Error| Failure::kernel(step, &error);
        let streams = streams_of(&call, descriptors)?;
        if self.oci.is_some() {
            return self.start_exec_with(connection, request, &call, streams);
        }
        let (report, child_report) = report_pair().map_err(failed("making a report socket"))?;
        let missing = || Failure::NotRunning { container: call.container.clone() };
        let container = self
            .containers
            .iter()
            .find(|container| container.state.name == call.container && container.pid.is_some())
            .ok_or_else(missing)?;
        // Its number is its own until we have reaped it; one that has ended has no namespaces any more.
        let namespaces = container.pid.and_then(|pid| ContainerNamespaces::of(pid).ok()).ok_or_else(missing)?;
        let mounts = container.mounts.as_ref().ok_or_else(missing)?;
        let spec = &container.plan.spec;
        let env: Vec<_> = spec.env.iter().chain(&call.env).cloned().collect();
        let program = Program {
            command: &call.command,
            env: &env,
            working_dir: call.working_dir.as_deref().unwrap_or(&spec.working_dir),
            user: call.user.as_ref().unwrap_or(&spec.user),
            capabilities: &spec.capabilities,
            hostname: &self.plan.spec.hostname,
            open_port: None,
            make_working_dir: false,
        };
        let run = |streams: &Streams, report: &OwnedFd, placed: bool| -> ! {
            let (plan, pod, filter) = (&container.plan, &self.namespaces, &self.filter);
            launch::exec_main(&self.plan, plan, pod, &namespaces, mounts, &program, streams, report, filter, placed)
        };
        let forked = self.fork_into(namespaces.pid.as_fd(), &container.plan.cgroup);
        let pid = match forked.map_err(failed("forking into the process namespace"))? {
            (Fork::Child, placed) => run(&streams, &child_report, placed),
            (Fork::Parent(pid), _) => pid,
        };
        drop((streams, child_report));
        let Started { terminal, .. } = wait_for_exec(pid, &report)?;
        self.execs.push(RunningExec::new(pid, connection, request, None));
        Ok(terminal)
    }

    /// Forks a child that lands in another process namespace; tells whether it is in its group of the unified tree.
    pub(super) fn fork_into(&self, processes: BorrowedFd<'_>, group: &CgroupPlan) -> io::Result<(Fork, bool)> {
        if self.plan.ids.is_privileged() {
            fork_there_and_back(processes, self.own_pid_namespace.as_fd(), group)
        } else {
            fork_through_another(processes, group)
        }
    }

    pub(super) fn note_exec_exit(&mut self, pid: i32, exit: Exit) {
        let Some(index) = self.execs.iter().position(|exec| exec.pid == pid) else { return };
        let exec = self.execs.swap_remove(index);
        if let Some(note) = &exec.inner {
            let _ = std::fs::remove_file(note);
            let _ = std::fs::remove_file(note.with_extension("json"));
        }
        if let Some((connection, id)) = exec.peer {
            self.tell(Some(connection), &Message::ExecExited { id, exit }, &[]);
        }
    }

    pub(super) fn kill_exec(&mut self, connection: u64, request: u64) {
        for exec in self.execs.iter().filter(|exec| exec.peer == Some((connection, request))) {
            // Its own session's children go with its terminal or their pipes.
            if let Some(note) = &exec.inner {
                self.kill_inner(note);
            }
            let _ = sys::kill(exec.pid, libc::SIGKILL);
        }
    }

    /// A closed connection's commands go on, but nobody hears how they end.
    pub(super) fn forget_exec_peers(&mut self, connection: u64) {
        for exec in &mut self.execs {
            if exec.peer.is_some_and(|(peer, _)| peer == connection) {
                exec.peer = None;
            }
        }
    }
}

/// The fork lands in the container's process namespace; ours is only left for a moment, and only for children.
fn fork_there_and_back(theirs: BorrowedFd<'_>, own: BorrowedFd<'_>, group: &CgroupPlan) -> io::Result<(Fork, bool)> {
    sys::setns(theirs, libc::CLONE_NEWPID)?;
    let forked = launch::fork_in_group(0, group);
    if !matches!(forked, Ok((Fork::Child, _))) {
        sys::setns(own, libc::CLONE_NEWPID)?;
    }
    forked
}

/// Without privilege there is no way back into our own process namespace, so a child goes instead of us. It ends at once,
/// and what it forked becomes ours, because we are a sub-reaper.
fn fork_through_another(theirs: BorrowedFd<'_>, group: &CgroupPlan) -> io::Result<(Fork, bool)> {
    let (read, write) = sys::pipe()?;
    let (gate, gate_keeper) = sys::pipe()?;
    let between = match sys::fork_with(0)? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            let joined = sys::setns(theirs, libc::CLONE_NEWPID);
            let answer = match joined.and_then(|()| launch::fork_in_group(0, group)) {
                Ok((Fork::Child, placed)) => {
                    // Tying itself to its parent before the parent is us would kill it with the one in between.
                    drop(gate_keeper);
                    let _ = rustix::io::read(&gate, &mut [0u8; 1]);
                    return Ok((Fork::Child, placed));
                }
                Ok((Fork::Parent(pid), _)) => pid,
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            };
            let _ = rustix::io::write(&write, &answer.to_ne_bytes());
            sys::exit_now(0)
        }
    };
    drop(write);
    let mut answer = [0u8; 4];
    let length = rustix::io::read(&read, &mut answer)?;
    sys::wait_for(between)?;
    drop(gate_keeper);
    match i32::from_ne_bytes(answer) {
        pid if length == 4 && pid > 0 => Ok((Fork::Parent(pid), false)),
        errno => Err(io::Error::from_raw_os_error(if errno < 0 { -errno } else { libc::EIO })),
    }
}

fn streams_of(call: &ExecCall, descriptors: Vec<OwnedFd>) -> Result<Streams, Failure> {
    if let Some((rows, columns)) = call.tty {
        return Ok(Streams::Terminal { rows, columns });
    }
    match <[OwnedFd; 3]>::try_from(descriptors) {
        Ok([stdin, stdout, stderr]) => Ok(Streams::Pipes { stdin, stdout, stderr }),
        Err(_) => Err(protocol("an exec without its three streams")),
    }
}
