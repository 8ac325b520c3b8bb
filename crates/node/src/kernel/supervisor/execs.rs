//! Commands run in a running container (exec).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use super::containers::{Started, protocol, report_pair, wait_for_exec};
use super::{Supervisor, return_to};
use crate::kernel::container::launch::{self, ContainerNamespaces, Program, Streams};
use crate::kernel::host::cgroup::CgroupPlan;
use crate::kernel::supervisor::protocol::{ExecCall, Failure, Message};
use crate::kernel::sys::{self, Fork};
use crate::runtime::Exit;

/// A command that has not exited.
pub(super) struct RunningExec {
    pub(super) pid: i32,
    /// The connection and request id to report the exit to, until that connection closes.
    peer: Option<(u64, u64)>,
    /// File in which an OCI runtime wrote the command's own pid, when `pid` is the runtime program.
    pid_file: Option<PathBuf>,
    /// The cgroup that counts processes killed for lack of memory, and its count at the start.
    group: CgroupPlan,
    oom_kills_before: u64,
}

impl RunningExec {
    pub(super) fn new(
        pid: i32,
        (connection, request): (u64, u64),
        pid_file: Option<PathBuf>,
        group: CgroupPlan,
        oom_kills_before: u64,
    ) -> Self {
        Self { pid, peer: Some((connection, request)), pid_file, group, oom_kills_before }
    }
}

impl Supervisor {
    /// Starts a command; returns its terminal if it asked for one.
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
            return self.start_oci_exec(connection, request, &call, streams);
        }
        let (report, child_report) = report_pair().map_err(failed("making a report socket"))?;
        let missing = || Failure::NotRunning { container: call.container.clone() };
        let container = self
            .containers
            .iter()
            .find(|container| container.state.name == call.container && container.pid.is_some())
            .ok_or_else(missing)?;
        // The pid cannot be reused before it is reaped; a process that has exited has no namespaces any more.
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
        let run = |streams: &Streams, report: &OwnedFd, in_cgroup: bool| -> ! {
            let (plan, pod) = (&container.plan, &self.namespaces);
            let filter = self.filters.of(&plan.spec);
            launch::exec_main(&self.plan, plan, pod, &namespaces, mounts, &program, streams, report, filter, in_cgroup)
        };
        let (group, oom_kills_before) = (container.plan.cgroup.clone(), container.plan.cgroup.oom_kills());
        let forked = self.fork_into(namespaces.pid.as_fd(), &container.plan.cgroup);
        let pid = match forked.map_err(failed("forking into the process namespace"))? {
            (Fork::Child, in_cgroup) => run(&streams, &child_report, in_cgroup),
            (Fork::Parent(pid), _) => pid,
        };
        drop((streams, child_report));
        let Started { terminal, .. } = wait_for_exec(pid, &report).map_err(|failure| name_user(failure, &call))?;
        self.execs.push(RunningExec::new(pid, (connection, request), None, group, oom_kills_before));
        Ok(terminal)
    }

    /// Forks a child into another pid namespace; returns whether the child is in its cgroup of the unified hierarchy.
    pub(super) fn fork_into(&self, processes: BorrowedFd<'_>, group: &CgroupPlan) -> io::Result<(Fork, bool)> {
        if self.plan.ids.is_privileged() {
            fork_via_setns(processes, self.own_pid_namespace.as_fd(), group)
        } else {
            fork_via_intermediate(processes, group)
        }
    }

    pub(super) fn note_exec_exit(&mut self, pid: i32, mut exit: Exit) {
        let Some(index) = self.execs.iter().position(|exec| exec.pid == pid) else { return };
        let exec = self.execs.swap_remove(index);
        // The command itself, or a child whose death made it fail.
        exit.oom_killed = exit.code != 0 && exec.group.oom_kills() > exec.oom_kills_before;
        if let Some(path) = &exec.pid_file {
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_file(path.with_extension("json"));
        }
        if let Some((connection, id)) = exec.peer {
            self.send(Some(connection), &Message::ExecExited { id, exit }, &[]);
        }
    }

    pub(super) fn kill_exec(&mut self, connection: u64, request: u64) {
        for exec in self.execs.iter().filter(|exec| exec.peer == Some((connection, request))) {
            // Children of its session end with its terminal or their pipes.
            if let Some(path) = &exec.pid_file {
                self.kill_by_pid_file(path);
            }
            let _ = sys::kill(exec.pid, libc::SIGKILL);
        }
    }

    /// Commands of a closed connection continue, but their exits are not reported.
    pub(super) fn forget_exec_peers(&mut self, connection: u64) {
        for exec in &mut self.execs {
            if exec.peer.is_some_and(|(peer, _)| peer == connection) {
                exec.peer = None;
            }
        }
    }
}

/// Forks with the container's pid namespace set for children, and restores the supervisor's own.
fn fork_via_setns(namespace: BorrowedFd<'_>, own: BorrowedFd<'_>, group: &CgroupPlan) -> io::Result<(Fork, bool)> {
    sys::setns(namespace, libc::CLONE_NEWPID)?;
    let forked = launch::fork_in_cgroup(0, group);
    if !matches!(forked, Ok((Fork::Child, _))) {
        return_to(own, libc::CLONE_NEWPID);
    }
    forked
}

/// Without privilege the supervisor cannot return to its own pid namespace, so an intermediate child forks instead and
/// exits at once. Its child is reparented to the supervisor, which is a subreaper.
fn fork_via_intermediate(namespace: BorrowedFd<'_>, group: &CgroupPlan) -> io::Result<(Fork, bool)> {
    let (read, write) = sys::pipe()?;
    let (release_read, release_write) = sys::pipe()?;
    let intermediate = match sys::fork_with(0)? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            let joined = sys::setns(namespace, libc::CLONE_NEWPID);
            let answer = match joined.and_then(|()| launch::fork_in_cgroup(0, group)) {
                Ok((Fork::Child, in_cgroup)) => {
                    // Waits until the supervisor is the parent: a parent death signal set before would kill it with the
                    // intermediate process.
                    drop(release_write);
                    let _ = rustix::io::read(&release_read, &mut [0u8; 1]);
                    return Ok((Fork::Child, in_cgroup));
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
    sys::wait_for(intermediate)?;
    drop(release_write);
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

/// The failure of a command, with the user's name if it is an id that does not exist in the Pod.
fn name_user(failure: Failure, call: &ExecCall) -> Failure {
    match (&failure, &call.user) {
        (Failure::Kernel { step, errno: libc::EINVAL }, Some(user)) if step.starts_with("setting the ") => {
            Failure::CannotRun {
                command: call.command.first().cloned().unwrap_or_default(),
                message: format!(
                    "the sandbox has no such user id: {:?}; it has more of them where root runs the engine, or a user with ranges in /etc/subuid and /etc/subgid",
                    user.user
                ),
                missing: false,
            }
        }
        _ => failure,
    }
}
