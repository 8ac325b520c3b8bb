//! From the fork in the supervisor to exec: the child that becomes a container's first process, or a command run in a
//! container. It is single-threaded, so it may allocate; it reports to the supervisor through a socket that exec
//! closes.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::kernel::container::isolation::{self, Identity};
use crate::kernel::container::rootfs::{self, Owner, WithPath, plan_root};
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::container::user::{FoundUser, find_user};
use crate::kernel::host::cgroup::CgroupPlan;
use crate::kernel::supervisor::plan::{ContainerPlan, IdMode, Isolation, PodPlan};
use crate::kernel::supervisor::protocol::{self, Failure};
use crate::kernel::sys::{self, Fork};

mod program;

pub(crate) use program::{DEFAULT_PATH, Program, with_defaults};
use program::{environment, exec_by_path, open_port};

/// Namespaces that all containers of a Pod share.
pub(crate) struct PodNamespaces {
    pub(crate) user: Option<OwnedFd>,
    pub(crate) net: OwnedFd,
    pub(crate) ipc: OwnedFd,
    pub(crate) uts: OwnedFd,
    /// The pid namespace that all containers share, if they do, and the pid of its first process.
    pub(crate) shared_processes: Option<(OwnedFd, i32)>,
}

/// Namespaces of one running container, for commands that join it.
pub(crate) struct ContainerNamespaces {
    pub(crate) user: OwnedFd,
    pub(crate) pid: OwnedFd,
    pub(crate) cgroup: OwnedFd,
}

impl ContainerNamespaces {
    /// Opens the namespaces of a process that has reached exec.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        Ok(Self {
            user: sys::open_namespace(pid, "user")?,
            pid: sys::open_namespace(pid, "pid")?,
            cgroup: sys::open_namespace(pid, "cgroup")?,
        })
    }
}

/// Messages from the child before exec. A socket that closes without a failure means that exec succeeded.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Report {
    /// The container is about to exec. Sent with its mount namespace: otherwise the exit of a short-lived container
    /// would unmount everything, and its caller would wait for the disk. The second descriptor, if there is one, is the
    /// file for the termination message.
    Prepared {
        port_open: bool,
    },
    /// Sent with the master side of the new terminal.
    Terminal,
    Failed(Failure),
}

/// Standard streams of the new process.
pub(crate) enum Streams {
    Pipes {
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// A new terminal of the container, with its size.
    Terminal {
        rows: u16,
        columns: u16,
    },
}

/// What the supervisor keeps of a container's set-up.
struct Kept {
    mounts: OwnedFd,
    message: Option<OwnedFd>,
}

/// How the process enters the Pod's user namespace.
enum UserEntry<'a> {
    /// Join the Pod's user namespace.
    Join(BorrowedFd<'a>),
    /// Create a nested one in which the only id has the wanted number.
    Nest,
    /// The process is in it already.
    Inside,
}

/// Runs in the child that will be the container's first process. Never returns.
pub(crate) fn container_main(
    pod: &PodPlan,
    container: &ContainerPlan,
    namespaces: &PodNamespaces,
    streams: &Streams,
    report: &OwnedFd,
    filter: &[libc::sock_filter],
    in_cgroup: bool,
) -> ! {
    let set_up = || -> StepResult<Kept> {
        let mounts = fs::File::open("/proc/self/ns/mnt").step("opening the mount namespace")?;
        enter_cgroups(&container.cgroup, in_cgroup, container.spec.oom_score_adj)?;
        sys::unshare(libc::CLONE_NEWCGROUP).step("making a cgroup namespace")?;
        join_pod(namespaces)?;
        let (uid, gid) = pod.ids.root_seen_by_setup();
        let idmap = namespaces.user.as_ref().filter(|_| pod.ids.is_privileged()).map(AsFd::as_fd);
        if let IdMode::Subordinate { .. } = pod.ids {
            // The node created the layer, and cannot change owners to the Pod's ids.
            std::os::unix::fs::lchown(container.layer.join("upper"), Some(uid), Some(gid))
                .step("giving the writable layer to the Pod")?;
        }
        let message = rootfs::enter_root(&plan_root(pod, container), Owner { uid, gid, idmap }, &pod.stage)?;
        Ok(Kept { mounts: mounts.into(), message })
    };
    let kept = match init_process(pod).and_then(|()| set_up()) {
        Ok(kept) => kept,
        Err((step, error)) => fail(report, kernel_failure(step, &error)),
    };
    let spec = &container.spec;
    let program = Program {
        command: &spec.command,
        env: &spec.env,
        working_dir: &spec.working_dir,
        user: &spec.user,
        capabilities: &spec.capabilities,
        hostname: &pod.spec.hostname,
        open_port: spec.open_port.filter(|_| container.isolation.network_namespace),
        make_working_dir: true,
    };
    let entry = match (pod.ids, &namespaces.user) {
        (IdMode::Single { .. }, _) => UserEntry::Nest,
        (_, Some(user)) => UserEntry::Join(user.as_fd()),
        _ => UserEntry::Inside,
    };
    run(pod.ids, &program, entry, streams, report, container.isolation, filter, Some(kept))
}

/// Runs in the child that will be a command inside a running container. Never returns.
#[expect(clippy::too_many_arguments, reason = "one call site; each is a part of the two halves being joined")]
pub(crate) fn exec_main(
    pod: &PodPlan,
    container: &ContainerPlan,
    pod_namespaces: &PodNamespaces,
    namespaces: &ContainerNamespaces,
    mounts: &OwnedFd,
    program: &Program<'_>,
    streams: &Streams,
    report: &OwnedFd,
    filter: &[libc::sock_filter],
    in_cgroup: bool,
) -> ! {
    let set_up = || -> StepResult<()> {
        enter_cgroups(&container.cgroup, in_cgroup, container.spec.oom_score_adj)?;
        join_pod(pod_namespaces)?;
        sys::setns(namespaces.cgroup.as_fd(), libc::CLONE_NEWCGROUP).step("joining the cgroup namespace")?;
        sys::setns(mounts.as_fd(), libc::CLONE_NEWNS).step("joining the mount namespace")
    };
    if let Err((step, error)) = init_process(pod).and_then(|()| set_up()) {
        fail(report, kernel_failure(step, &error));
    }
    let entry = match container.isolation.user_namespace {
        true => UserEntry::Join(namespaces.user.as_fd()),
        false => UserEntry::Inside,
    };
    run(pod.ids, program, entry, streams, report, container.isolation, filter, None)
}

/// The first steps of every process that enters a sandbox.
fn init_process(pod: &PodPlan) -> StepResult<()> {
    // Processes inside must not access this process while it has more privileges than the sandbox. Without privilege it
    // has to write files in its own /proc folder first; until then its user namespace, which is not the sandbox's,
    // protects it.
    if pod.ids.is_privileged() {
        sys::set_dumpable(false).step("making the process non-dumpable")?;
    }
    // Restores the signal that the supervisor ignores, and the signal mask; the spawner has reset all others.
    sys::default_signals(&[libc::SIGPIPE]);
    sys::set_parent_death_signal(libc::SIGKILL).step("tying the process to its supervisor")?;
    rustix::process::setsid().step("making a session")?;
    Ok(())
}

/// `in_cgroup`: the process was created in its cgroup of the unified hierarchy.
fn enter_cgroups(cgroup: &CgroupPlan, in_cgroup: bool, oom_score_adj: i32) -> StepResult<()> {
    if !in_cgroup {
        cgroup.enter_unified().step("entering the control group")?;
    }
    cgroup.enter_v1().step("entering the control groups")?;
    // Always above the supervisor's score: the supervisor must be the last of the Pod to be killed for lack of memory.
    let own = fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse::<i32>().ok());
    let score =
        oom_score_adj.max(own.map_or(oom_score_adj, |own| own.saturating_add(MIN_OOM_SCORE_DISTANCE))).min(1_000);
    match fs::write("/proc/self/oom_score_adj", score.to_string()) {
        Err(error) if error.raw_os_error() != Some(libc::EACCES) => Err(("setting the oom score", error)),
        _ => Ok(()),
    }
}

/// Minimum distance between the OOM scores of a container's processes and their supervisor: two tenths of the Pod's
/// memory, far more than a supervisor ever uses.
const MIN_OOM_SCORE_DISTANCE: i32 = 200;

/// Forks a process of a container, created in the container's cgroup of the unified hierarchy if the kernel supports
/// that. Returns whether it is there.
pub(crate) fn fork_in_cgroup(flags: libc::c_int, cgroup: &CgroupPlan) -> io::Result<(Fork, bool)> {
    if let Some(group) = open_cgroup(cgroup)
        && let Ok(forked) = sys::fork_into(flags, group.as_fd())
    {
        return Ok((forked, true));
    }
    // An older kernel, or a hierarchy that is not ours: the process moves there by itself.
    Ok((sys::fork_with(flags)?, false))
}

/// The container's cgroup of the unified hierarchy, for clone3.
pub(crate) fn open_cgroup(cgroup: &CgroupPlan) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(cgroup.unified.as_ref()?, flags, Mode::empty()).ok()
}

fn join_pod(namespaces: &PodNamespaces) -> StepResult<()> {
    sys::setns(namespaces.net.as_fd(), libc::CLONE_NEWNET).step("joining the network namespace")?;
    sys::setns(namespaces.ipc.as_fd(), libc::CLONE_NEWIPC).step("joining the ipc namespace")?;
    sys::setns(namespaces.uts.as_fd(), libc::CLONE_NEWUTS).step("joining the uts namespace")
}

/// From a complete root file system to exec. `kept` is passed on by a container's first process.
#[expect(clippy::too_many_arguments, reason = "two call sites, each of which has all of them")]
fn run(
    ids: IdMode,
    program: &Program<'_>,
    entry: UserEntry<'_>,
    streams: &Streams,
    report: &OwnedFd,
    isolation: Isolation,
    filter: &[libc::sock_filter],
    kept: Option<Kept>,
) -> ! {
    // The container may have replaced them by anything: a pipe, for example, or a file of any size.
    let read = |path: &str| rootfs::read_beneath(Path::new("/"), path).unwrap_or_default();
    let found = match find_user(program.user, &read("/etc/passwd"), &read("/etc/group")) {
        Ok(found) => found,
        Err(error) => fail(report, cannot_run(program, error.to_string(), false)),
    };
    if let Err(message) = check_ids(ids, &found) {
        fail(report, cannot_run(program, message, false));
    }
    if let Err((step, error)) = prepare_process(ids, program, &found, entry, streams, report) {
        fail(report, kernel_failure(step, &error));
    }
    sys::vfork::disarm_timeout();
    // If the port cannot be opened, the program fails to open it too and reports the reason.
    let open_port = program.open_port.and_then(|port| open_port(port).ok());
    if let Some(Kept { mounts, message }) = kept {
        let prepared = Report::Prepared { port_open: open_port.is_some() };
        let descriptors: Vec<_> = [Some(&mounts), message.as_ref()].into_iter().flatten().map(AsFd::as_fd).collect();
        if let Err(error) = protocol::send(report, &prepared, &descriptors) {
            fail(report, kernel_failure("handing out the mount namespace", &error));
        }
    }
    let (environment, path) = environment(program, &found, open_port.is_some());
    let groups = (!matches!(ids, IdMode::Single { .. })).then(|| found.groups.clone());
    let identity = Identity { uid: found.uid, gid: found.gid, groups };
    // The supervisor's descriptors are closed before privileges are dropped, so that nothing is left for processes
    // inside to take.
    let report = match sys::close_all_but(report, open_port.as_ref()) {
        Ok(report) => report,
        Err(error) => fail(report, kernel_failure("closing descriptors", &error)),
    };
    let report = &report;
    if let Err((step, error)) = isolation::restrict_process(&identity, program.capabilities, isolation, filter) {
        fail(report, kernel_failure(step, &error));
    }
    // The change of user has cleared it.
    if let Err(error) = sys::set_parent_death_signal(libc::SIGKILL) {
        fail(report, kernel_failure("tying the process to its supervisor", &error));
    }
    if let Err(error) = rustix::process::chdir(program.working_dir) {
        fail(
            report,
            cannot_run(program, format!("working folder {}: {}", program.working_dir, io::Error::from(error)), false),
        );
    }
    let error = exec_by_path(program.command, &environment, &path);
    fail(report, cannot_run(program, error.to_string(), error.raw_os_error() == Some(libc::ENOENT)))
}

/// Prepares streams, working folder and user namespace: the steps that still need the privileges of the set-up.
fn prepare_process(
    ids: IdMode,
    program: &Program<'_>,
    found: &FoundUser,
    entry: UserEntry<'_>,
    streams: &Streams,
    report: &OwnedFd,
) -> StepResult<()> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if program.make_working_dir && !Path::new(program.working_dir).exists() {
        let (uid, gid) = ids.root_seen_by_setup();
        make_folders(Path::new(program.working_dir), uid, gid).step("making the working folder")?;
    }
    if program.make_working_dir {
        chown_home(ids, found);
    }
    set_limits(ids).step("setting resource limits")?;
    match streams {
        Streams::Pipes { stdin, stdout, stderr } => {
            for (fd, number) in [(stdin, 0), (stdout, 1), (stderr, 2)] {
                sys::dup_onto(fd.as_fd(), number).step("setting the standard streams")?;
            }
            chown_streams(ids, found)?;
        }
        Streams::Terminal { rows, columns } => open_terminal(*rows, *columns, ids, found, report)?,
    }
    match entry {
        UserEntry::Join(user) => sys::setns(user, libc::CLONE_NEWUSER).step("joining the user namespace")?,
        UserEntry::Nest => nest_user_namespace(found).step("making the container's user namespace")?,
        UserEntry::Inside => {}
    }
    // From here on the process has the sandbox's ids, and must not be accessible to the sandbox's processes.
    sys::set_dumpable(false).step("making the process non-dumpable")
}

/// Changes the owner of the pipes to the process's user, so that it can open `/dev/stdout` again by name.
fn chown_streams(ids: IdMode, found: &FoundUser) -> StepResult<()> {
    let Some((uid, gid)) = host_ids(ids, found) else { return Ok(()) };
    for stream in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        // Anything else, /dev/null in particular, belongs to the host: root could change its owner to the sandbox.
        let mode = rustix::fs::fstat(stream).step("looking at a stream")?.st_mode;
        if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::Fifo {
            continue;
        }
        match rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid))) {
            // A pipe whose owner may not be changed stays as it is.
            Ok(()) | Err(rustix::io::Errno::PERM | rustix::io::Errno::INVAL | rustix::io::Errno::ROFS) => {}
            Err(error) => return Err(("giving the streams to the user", error.into())),
        }
    }
    Ok(())
}

/// The user's ids as seen by the set-up process, if they are mapped there.
fn host_ids(ids: IdMode, found: &FoundUser) -> Option<(u32, u32)> {
    ids.seen_by_setup(found.uid).zip(ids.seen_by_setup(found.gid))
}

/// Whether the Pod has a user's ids. In a small block, an image may name an id outside of it.
fn check_ids(ids: IdMode, found: &FoundUser) -> Result<(), String> {
    let IdMode::Subordinate { count, .. } = ids else { return Ok(()) };
    match found.groups.iter().chain([&found.uid, &found.gid]).find(|id| ids.seen_by_setup(**id).is_none()) {
        Some(id) => Err(format!(
            "user or group {id} is outside the {count} ids that this sandbox has of your subordinate ids; add more to /etc/subuid and /etc/subgid (1,048,576 give every sandbox 65,536)"
        )),
        None => Ok(()),
    }
}

/// Changes the owner of the user's home where the image's files cannot be id-mapped and therefore belong to no user
/// inside.
fn chown_home(ids: IdMode, found: &FoundUser) {
    let (IdMode::Subordinate { .. }, Some((uid, gid))) = (ids, host_ids(ids, found)) else { return };
    let home = Path::new(&found.home);
    let is_owned_by_setup_root =
        fs::symlink_metadata(home).is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == 0);
    if is_owned_by_setup_root && home != Path::new("/") {
        // On a read-only root it stays as it is; every user inside may read it.
        let _ = std::os::unix::fs::lchown(home, Some(uid), Some(gid));
    }
}

fn open_terminal(rows: u16, columns: u16, ids: IdMode, found: &FoundUser, report: &OwnedFd) -> StepResult<()> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty()).step("opening a terminal")?;
    rustix::pty::unlockpt(&master).step("unlocking the terminal")?;
    let name = rustix::pty::ptsname(&master, Vec::new()).step("naming the terminal")?;
    let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).step("opening the terminal")?;
    if let Some((uid, _)) = host_ids(ids, found) {
        rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(uid)), None)
            .step("giving the terminal to the user")?;
    }
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&master, size).step("sizing the terminal")?;
    protocol::send(report, &Report::Terminal, &[master.as_fd()]).step("handing out the terminal")?;
    sys::set_controlling_terminal(slave.as_fd()).step("taking the terminal")?;
    (0..=2).try_for_each(|number| sys::dup_onto(slave.as_fd(), number)).step("setting the standard streams")
}

/// Enters a user namespace in which the only id has the wanted number.
fn nest_user_namespace(found: &FoundUser) -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{} 0 1", found.uid))?;
    fs::write("/proc/self/gid_map", format!("{} 0 1", found.gid))
}

/// Sets the limits that every process of a container has.
pub(crate) fn set_process_limits() -> io::Result<()> {
    sys::set_limit(libc::RLIMIT_CORE, 0, 0)?;
    let hard = open_files();
    sys::set_limit(libc::RLIMIT_NOFILE, hard, hard)
}

fn set_limits(ids: IdMode) -> io::Result<()> {
    set_process_limits()?;
    if !ids.is_privileged() {
        let processes = rustix::process::getrlimit(rustix::process::Resource::Nproc);
        let hard = processes.maximum.unwrap_or(MAX_ROOTLESS_PROCESSES).min(MAX_ROOTLESS_PROCESSES);
        sys::set_limit(libc::RLIMIT_NPROC, hard, hard)?;
    }
    Ok(())
}

/// Maximum number of open files of a sandbox's process on this host.
pub(crate) fn open_files() -> u64 {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.maximum.unwrap_or(MAX_OPEN_FILES).min(MAX_OPEN_FILES)
}

/// Maximum number of open files per process: far above what programs use, and low enough for programs that loop over
/// all descriptors.
const MAX_OPEN_FILES: u64 = 65_536;
/// Maximum number of processes per user namespace where no cgroup can count them.
const MAX_ROOTLESS_PROCESSES: u64 = 1_024;

fn make_folders(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_folders(parent, uid, gid)?;
    }
    fs::create_dir(path)?;
    std::os::unix::fs::lchown(path, Some(uid), Some(gid))
}

fn cannot_run(program: &Program<'_>, message: String, missing: bool) -> Failure {
    Failure::CannotRun { command: program.command.first().cloned().unwrap_or_default(), message, missing }
}

fn kernel_failure(step: &str, error: &io::Error) -> Failure {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<WithPath>()) {
        Some(inner) => Failure::Kernel { step: format!("{step} ({inner})"), errno: inner.errno().unwrap_or(libc::EIO) },
        None if error.raw_os_error().is_none() => {
            Failure::Kernel { step: format!("{step} ({error})"), errno: libc::EIO }
        }
        None => Failure::kernel(step, error),
    }
}

fn fail(report: &OwnedFd, failure: Failure) -> ! {
    // If this fails, the supervisor only sees the exit code.
    let _ = protocol::send(report, &Report::Failed(failure), &[]);
    sys::vfork::exit_child(127)
}
