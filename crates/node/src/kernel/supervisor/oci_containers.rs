//! Containers and commands of a Pod with an OCI runtime: the same streams, logs, records and exits.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{Gid, Mode, OFlags, Uid};

use super::Supervisor;
use super::containers::{Container, OwnEnds, open_streams};
use super::execs::RunningExec;
use super::logs::{Log, Stream};
use super::streams::Output;
use crate::kernel::container::launch::Streams;
use crate::kernel::container::oci::{self, Bundle, Console, NamespacePaths, Process};
use crate::kernel::container::rootfs::Owner;
use crate::kernel::supervisor::plan::{ContainerPlan, IdMode};
use crate::kernel::supervisor::protocol::{ExecCall, Failure};
use crate::kernel::sys::{self, Fork};
use crate::runtime::{ContainerState, PreviousAttempt};

fn failed(step: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::kernel(step, &error)
}

impl Supervisor {
    /// Starts a container with an OCI runtime.
    pub(super) fn launch_oci(
        &mut self,
        runtime: oci::OciRuntime,
        plan: ContainerPlan,
        previous: Option<PreviousAttempt>,
    ) -> Result<Container, Failure> {
        let log = Log::new(&plan.spec.log);
        plan.cgroup.create().map_err(failed("making the container's control groups"))?;
        let oom_kills_before = plan.cgroup.oom_kills();
        let (uid, gid) = self.plan.ids.root_seen_by_setup();
        let owner = Owner { uid, gid, idmap: self.namespaces.user.as_ref().map(AsFd::as_fd) };
        let made = Bundle::make(&self.plan, &plan, &runtime, &self.namespace_paths(), owner)
            .and_then(|bundle| self.create_and_start(&runtime, &plan, &bundle).map(|started| (bundle, started)));
        let (bundle, (pid, ends)) = match made {
            Ok(made) => made,
            Err(failure) => {
                let _ = plan.cgroup.kill();
                let _ = plan.cgroup.remove();
                return Err(failure);
            }
        };
        let outputs =
            ends.outputs.into_iter().map(|(fd, stream)| Output::new(fd, stream)).collect::<io::Result<Vec<_>>>();
        let state = ContainerState {
            name: plan.spec.name.clone(),
            attempt: plan.spec.attempt,
            id: plan.id.clone(),
            pid: pid.unsigned_abs(),
            started_at: Timestamp::now(),
            exit: None,
            port_open: false,
            previous,
        };
        Ok(Container {
            state,
            pid: Some(pid),
            mounts: None,
            message: None,
            outputs: outputs.map_err(failed("preparing output"))?,
            sinks: Vec::new(),
            input: ends.input,
            copy_locks: Vec::new(),
            log,
            bundle: Some((runtime, bundle)),
            oom_kills_before,
            plan,
        })
    }

    fn create_and_start(
        &self,
        runtime: &oci::OciRuntime,
        plan: &ContainerPlan,
        bundle: &Bundle,
    ) -> Result<(i32, OwnEnds), Failure> {
        let console = plan
            .spec
            .tty
            .then(|| Console::open(bundle.dir()))
            .transpose()
            .map_err(failed("making a console socket"))?;
        let (streams, mut ends) = open_streams(plan).map_err(failed("making pipes"))?;
        let streams = match streams {
            Streams::Pipes { stdin, stdout, stderr } => {
                [pipe_or_empty(stdin)?, pipe_or_empty(stdout)?, pipe_or_empty(stderr)?]
            }
            Streams::Terminal { .. } => [empty_stream()?, empty_stream()?, empty_stream()?],
        };
        self.chown_pipes(plan, bundle, &streams);
        let pid = runtime.create(plan, bundle, &streams, console.as_ref().map(Console::path))?;
        let started = enter_cgroups(runtime, plan, pid).and_then(|()| match &console {
            None => Ok(None),
            Some(console) => console.receive().map(Some).map_err(failed("receiving the terminal")),
        });
        let started = started.and_then(|terminal| runtime.start(plan, bundle).map(|()| terminal));
        match started {
            Err(failure) => {
                runtime.delete(&plan.id);
                Err(failure)
            }
            Ok(None) => Ok((pid, ends)),
            Ok(Some(terminal)) => {
                let copy = terminal.try_clone().map_err(failed("copying the terminal"))?;
                ends = OwnEnds { input: Some(copy), outputs: vec![(terminal, Stream::Stdout)] };
                Ok((pid, ends))
            }
        }
    }

    /// Changes the owner of the pipes to the container's user, so that it can open `/dev/stdout` again by name.
    fn chown_pipes(&self, plan: &ContainerPlan, bundle: &Bundle, streams: &[OwnedFd; 3]) {
        let (IdMode::Block { first }, Ok(user)) = (self.plan.ids, bundle.find_user(plan)) else { return };
        for stream in &streams[1..] {
            if is_pipe(stream) {
                let (uid, gid) = (Uid::from_raw(first + user.uid), Gid::from_raw(first + user.gid));
                let _ = rustix::fs::fchown(stream, Some(uid), Some(gid));
            }
        }
    }

    fn namespace_paths(&self) -> NamespacePaths {
        let path = |fd: &OwnedFd| PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()));
        NamespacePaths {
            user: self.namespaces.user.as_ref().map(path),
            net: path(&self.namespaces.net),
            ipc: path(&self.namespaces.ipc),
            uts: path(&self.namespaces.uts),
            pid: self.namespaces.shared_processes.as_ref().map(|(fd, _)| path(fd)),
        }
    }

    /// Runs a command in a container of an OCI runtime; returns its terminal if it asked for one.
    pub(super) fn start_oci_exec(
        &mut self,
        connection: u64,
        request: u64,
        call: &ExecCall,
        streams: Streams,
    ) -> Result<Option<OwnedFd>, Failure> {
        let missing = || Failure::NotRunning { container: call.container.clone() };
        let found = self.containers.iter().find(|c| c.state.name == call.container && c.pid.is_some());
        let container = found.ok_or_else(missing)?;
        let (runtime, bundle) = container.bundle.as_ref().ok_or_else(missing)?;
        let spec = &container.plan.spec;
        let command = || call.command.first().cloned().unwrap_or_default();
        let user = bundle.find(call.user.as_ref().unwrap_or(&spec.user)).map_err(|message| Failure::CannotRun {
            command: command(),
            message,
            missing: false,
        })?;
        let env: Vec<_> = spec.env.iter().chain(&call.env).cloned().collect();
        let document = oci::process_document(&Process {
            command: &call.command,
            env: &env,
            working_dir: call.working_dir.as_deref().unwrap_or(&spec.working_dir),
            user: &user,
            capabilities: &spec.capabilities,
            terminal: call.tty.is_some(),
            oom_score_adj: spec.oom_score_adj,
            open_files: runtime.convention().open_files(),
            hostname: &self.plan.spec.hostname,
        });
        let pid_file = bundle.dir().join(format!("exec-{connection}-{request}.pid"));
        let process = pid_file.with_extension("json");
        fs::write(&process, document.to_string()).map_err(failed("writing the command"))?;
        let (group, oom_kills_before) = (container.plan.cgroup.clone(), container.plan.cgroup.oom_kills());
        let (streams, master) = match streams {
            Streams::Pipes { stdin, stdout, stderr } => {
                (ExecStreams::Pipes([pipe_or_empty(stdin)?, pipe_or_empty(stdout)?, pipe_or_empty(stderr)?]), None)
            }
            Streams::Terminal { rows, columns } => {
                let (master, slave) = open_terminal(rows, columns).map_err(failed("opening a terminal"))?;
                (ExecStreams::Terminal(slave), Some(master))
            }
        };
        let pid = match sys::fork_with(0).map_err(failed("forking"))? {
            Fork::Child => {
                if streams.install().is_err() {
                    sys::exit_now(127);
                }
                runtime.exec_here(&container.plan.id, &process, &pid_file)
            }
            Fork::Parent(pid) => pid,
        };
        self.execs.push(RunningExec::new(pid, (connection, request), Some(pid_file), group, oom_kills_before));
        Ok(master)
    }

    /// Kills a command by the pid that its runtime wrote, if that pid belongs to this Pod: a runtime with a kernel of
    /// its own may write a pid of that kernel.
    pub(super) fn kill_by_pid_file(&self, pid_file: &Path) {
        let pid = fs::read_to_string(pid_file).ok().and_then(|text| text.trim().parse::<i32>().ok());
        let Some(pid) = pid.filter(|pid| *pid > 1) else { return };
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if groups.contains(&self.plan.group) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
    }
}

/// The standard streams of the program that runs a command.
enum ExecStreams {
    Pipes([OwnedFd; 3]),
    Terminal(OwnedFd),
}

impl ExecStreams {
    /// Installs them as the calling process's streams.
    fn install(&self) -> io::Result<()> {
        sys::reset_signals();
        sys::set_parent_death_signal(libc::SIGKILL)?;
        rustix::process::setsid()?;
        match self {
            Self::Pipes(streams) => (0..3).zip(streams).try_for_each(|(number, fd)| sys::dup_onto(fd.as_fd(), number)),
            Self::Terminal(slave) => {
                sys::set_controlling_terminal(slave.as_fd())?;
                (0..3).try_for_each(|number| sys::dup_onto(slave.as_fd(), number))
            }
        }
    }
}

/// A terminal of the host; the runtime copies between it and the one it creates inside.
fn open_terminal(rows: u16, columns: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open("/dev/ptmx", flags, Mode::empty())?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&master, size)?;
    Ok((master, slave))
}

/// Moves the created container, which does not run yet, into the cgroups with its limits.
fn enter_cgroups(runtime: &oci::OciRuntime, plan: &ContainerPlan, pid: i32) -> Result<(), Failure> {
    if runtime.convention().cgroups_managed_by_node {
        return Ok(());
    }
    plan.cgroup.adopt(pid).map_err(failed("entering the control groups"))
}

/// A stream whose owner a runtime may change to the sandbox's user, as crun and runsc do: never the host's `/dev/null`.
fn pipe_or_empty(stream: OwnedFd) -> Result<OwnedFd, Failure> {
    if is_pipe(&stream) { Ok(stream) } else { empty_stream() }
}

fn is_pipe(stream: &OwnedFd) -> bool {
    rustix::fs::fstat(stream)
        .is_ok_and(|found| rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Fifo)
}

fn empty_stream() -> Result<OwnedFd, Failure> {
    oci::empty_stream().map_err(failed("making an empty stream"))
}
