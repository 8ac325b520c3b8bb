//! Commands run in a container that already runs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::super::launch::{self, Program, Streams};
use super::super::sys::{self, Fork};
use super::super::wire::{ExecCall, Failure, Message};
use super::Supervisor;
use super::containers::{protocol, report_pair, wait_for_exec};
use crate::runtime::Exit;

/// A command that has not ended.
pub(super) struct RunningExec {
    pub(super) pid: i32,
    /// Who asked, and under which request id, until that connection closes.
    peer: Option<(u64, u64)>,
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
        let (report, child_report) = report_pair().map_err(failed("making a report socket"))?;
        let missing = || Failure::NotRunning { container: call.container.clone() };
        let container = self
            .containers
            .iter()
            .find(|container| container.state.name == call.container && container.pid.is_some())
            .ok_or_else(missing)?;
        let namespaces = container.namespaces.as_ref().ok_or_else(missing)?;
        let spec = &container.plan.spec;
        let env: Vec<_> = spec.env.iter().chain(&call.env).cloned().collect();
        let program = Program {
            command: &call.command,
            env: &env,
            working_dir: call.working_dir.as_deref().unwrap_or(&spec.working_dir),
            user: call.user.as_ref().unwrap_or(&spec.user),
            capabilities: &spec.capabilities,
            hostname: &self.plan.spec.hostname,
            make_working_dir: false,
        };
        // Only children are affected: the fork lands in the container's process namespace.
        sys::setns(namespaces.pid.as_fd(), libc::CLONE_NEWPID).map_err(failed("joining the process namespace"))?;
        let forked = sys::fork_with(0);
        if let Ok(Fork::Child) = forked {
            launch::exec_main(
                &self.plan,
                &container.plan,
                &self.namespaces,
                namespaces,
                &program,
                streams,
                &child_report,
                &self.filter,
            )
        }
        sys::setns(self.own_pid_namespace.as_fd(), libc::CLONE_NEWPID)
            .map_err(failed("leaving the process namespace"))?;
        let Fork::Parent(pid) = forked.map_err(failed("forking"))? else {
            return Err(protocol("fork without a parent"));
        };
        drop((streams, child_report));
        let terminal = wait_for_exec(pid, &report, &mut self.buffer)?;
        self.execs.push(RunningExec { pid, peer: Some((connection, request)) });
        Ok(terminal)
    }

    pub(super) fn note_exec_exit(&mut self, pid: i32, exit: Exit) {
        let Some(index) = self.execs.iter().position(|exec| exec.pid == pid) else { return };
        let exec = self.execs.swap_remove(index);
        if let Some((connection, id)) = exec.peer {
            self.tell(Some(connection), &Message::ExecExited { id, exit }, &[]);
        }
    }

    pub(super) fn kill_exec(&mut self, connection: u64, request: u64) {
        for exec in self.execs.iter().filter(|exec| exec.peer == Some((connection, request))) {
            // Its own session's children go with its terminal or their pipes.
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

fn streams_of(call: &ExecCall, descriptors: Vec<OwnedFd>) -> Result<Streams, Failure> {
    if let Some((rows, columns)) = call.tty {
        return Ok(Streams::Terminal { rows, columns });
    }
    match <[OwnedFd; 3]>::try_from(descriptors) {
        Ok([stdin, stdout, stderr]) => Ok(Streams::Pipes { stdin, stdout, stderr }),
        Err(_) => Err(protocol("an exec without its three streams")),
    }
}
