//! The process that becomes a container's first process, or a command run in a container: from the fork in the supervisor
//! to exec. It is single-threaded, so it may allocate; it reports through a socket that exec closes.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::cgroup::CgroupPlan;
use super::plan::{ContainerPlan, IdMode, PodPlan, Walls};
use super::rootfs::{self, Owner, WithPath, plan_root};
use super::sys::{self, Fork};
use super::user::{FoundUser, find_user};
use super::walls::{self, Identity, Named, Step};
use super::wire::{self, Failure};

mod program;

pub(crate) use program::{DEFAULT_PATH, Program, with_defaults};
use program::{environment, exec_by_path, open_port};

/// Namespaces all containers of a Pod share.
pub(crate) struct PodNamespaces {
    pub(crate) user: Option<OwnedFd>,
    pub(crate) net: OwnedFd,
    pub(crate) ipc: OwnedFd,
    pub(crate) uts: OwnedFd,
    /// The process namespace all containers share, when they do, and the process that holds it.
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

/// What the child says before exec. A closed socket without a failure means exec happened.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Report {
    /// A container is about to run its program. With its mount namespace: a short life must not unmount everything as it ends, and have
    /// whoever waits for it wait for the disk.
    Prepared {
        port_open: bool,
    },
    /// With the master side of the new terminal.
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
    /// A new terminal of the container; rows and columns.
    Terminal {
        rows: u16,
        columns: u16,
    },
}

/// How the process gets behind the Pod's user namespace.
enum UserEntry<'a> {
    /// Join it.
    Join(BorrowedFd<'a>),
    /// Make one of its own in which the one id there is has the wanted name.
    Nest,
    /// It is inside already.
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
    placed: bool,
) -> ! {
    let set_up = || -> Step<OwnedFd> {
        let mounts = fs::File::open("/proc/self/ns/mnt").step("opening the mount namespace")?;
        enter_groups(&container.cgroup, placed, container.spec.oom_score_adj)?;
        sys::unshare(libc::CLONE_NEWCGROUP).step("making a cgroup namespace")?;
        join_pod(namespaces)?;
        let (uid, gid) = pod.ids.root_seen_by_setup();
        let idmap = namespaces.user.as_ref().filter(|_| pod.ids.is_privileged()).map(AsFd::as_fd);
        if let IdMode::Subordinate { .. } = pod.ids {
            // Made by the node, who has no power over the Pod's ids.
            std::os::unix::fs::lchown(container.layer.join("upper"), Some(uid), Some(gid))
                .step("giving the writable layer to the Pod")?;
        }
        rootfs::enter_root(&plan_root(pod, container), Owner { uid, gid, idmap }, &pod.stage)?;
        Ok(mounts.into())
    };
    let mounts = match begin(pod).and_then(|()| set_up()) {
        Ok(mounts) => mounts,
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
        open_port: spec.open_port.filter(|_| container.walls.network_namespace),
        make_working_dir: true,
    };
    let entry = match (pod.ids, &namespaces.user) {
        (IdMode::Single { .. }, _) => UserEntry::Nest,
        (_, Some(user)) => UserEntry::Join(user.as_fd()),
        _ => UserEntry::Inside,
    };
    run(pod.ids, &program, entry, streams, report, container.walls, filter, Some(mounts))
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
    placed: bool,
) -> ! {
    let set_up = || -> Step<()> {
        enter_groups(&container.cgroup, placed, container.spec.oom_score_adj)?;
        join_pod(pod_namespaces)?;
        sys::setns(namespaces.cgroup.as_fd(), libc::CLONE_NEWCGROUP).step("joining the cgroup namespace")?;
        sys::setns(mounts.as_fd(), libc::CLONE_NEWNS).step("joining the mount namespace")
    };
    if let Err((step, error)) = begin(pod).and_then(|()| set_up()) {
        fail(report, kernel_failure(step, &error));
    }
    let entry = match container.walls.user_namespace {
        true => UserEntry::Join(namespaces.user.as_fd()),
        false => UserEntry::Inside,
    };
    run(pod.ids, program, entry, streams, report, container.walls, filter, None)
}

/// The part every process that enters a sandbox starts with.
fn begin(pod: &PodPlan) -> Step<()> {
    // Nothing inside may look into this process while it still is more than the sandbox. Without privilege it has files of
    // its own in /proc to write first; until then its user namespace, which is not the sandbox's, keeps it closed.
    if pod.ids.is_privileged() {
        sys::set_dumpable(false).step("closing the process to tracing")?;
    }
    // What the supervisor ignores, and what it blocks; the spawner has seen to all others.
    sys::default_signals(&[libc::SIGPIPE]);
    sys::set_parent_death_signal(libc::SIGKILL).step("tying the process to its supervisor")?;
    rustix::process::setsid().step("making a session")?;
    Ok(())
}

/// `placed`: the process was born in its group of the unified tree.
fn enter_groups(cgroup: &CgroupPlan, placed: bool, oom_score_adj: i32) -> Step<()> {
    if !placed {
        cgroup.enter_unified().step("entering the control group")?;
    }
    cgroup.enter_v1().step("entering the control groups")?;
    // Above the supervisor's, whatever was asked for: it must be the last of the Pod to die for lack of memory.
    let own = fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse::<i32>().ok());
    let score = oom_score_adj.max(own.map_or(oom_score_adj, |own| own.saturating_add(LEAST_OOM_DISTANCE))).min(1_000);
    match fs::write("/proc/self/oom_score_adj", score.to_string()) {
        Err(error) if error.raw_os_error() != Some(libc::EACCES) => Err(("setting the oom score", error)),
        _ => Ok(()),
    }
}

/// How far a container's processes are above their supervisor when the kernel looks for one to kill: two tenths of the
/// Pod's memory, far more than a supervisor ever has.
const LEAST_OOM_DISTANCE: i32 = 200;

/// Forks a process of a container, in the container's group of the unified tree from its first moment where the kernel can
/// do that. Tells whether it is there.
pub(crate) fn fork_in_group(flags: libc::c_int, cgroup: &CgroupPlan) -> io::Result<(Fork, bool)> {
    if let Some(group) = open_group(cgroup)
        && let Ok(forked) = sys::fork_into(flags, group.as_fd())
    {
        return Ok((forked, true));
    }
    // An older kernel, or a tree that is not ours: the process goes there by itself.
    Ok((sys::fork_with(flags)?, false))
}

/// The container's group of the unified tree, to be born in.
pub(crate) fn open_group(cgroup: &CgroupPlan) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(cgroup.unified.as_ref()?, flags, Mode::empty()).ok()
}

fn join_pod(namespaces: &PodNamespaces) -> Step<()> {
    sys::setns(namespaces.net.as_fd(), libc::CLONE_NEWNET).step("joining the network namespace")?;
    sys::setns(namespaces.ipc.as_fd(), libc::CLONE_NEWIPC).step("joining the ipc namespace")?;
    sys::setns(namespaces.uts.as_fd(), libc::CLONE_NEWUTS).step("joining the uts namespace")
}

/// From a finished root to exec. `mounts` are handed out by a container's first process.
#[expect(clippy::too_many_arguments, reason = "two call sites, each of which has all of them")]
fn run(
    ids: IdMode,
    program: &Program<'_>,
    entry: UserEntry<'_>,
    streams: &Streams,
    report: &OwnedFd,
    walls: Walls,
    filter: &[libc::sock_filter],
    mounts: Option<OwnedFd>,
) -> ! {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let found = match find_user(program.user, &read("/etc/passwd"), &read("/etc/group")) {
        Ok(found) => found,
        Err(error) => fail(report, cannot_run(program, error.to_string(), false)),
    };
    if let Err(message) = check_ids(ids, &found) {
        fail(report, cannot_run(program, message, false));
    }
    if let Err((step, error)) = settle(ids, program, &found, entry, streams, report) {
        fail(report, kernel_failure(step, &error));
    }
    sys::lent::prepared();
    // Where it cannot be opened, the program that wants it says why, in its own words.
    let open_port = program.open_port.and_then(|port| open_port(port).ok());
    if let Some(mounts) = mounts {
        let prepared = Report::Prepared { port_open: open_port.is_some() };
        if let Err(error) = wire::send(report, &prepared, &[mounts.as_fd()]) {
            fail(report, kernel_failure("handing out the mount namespace", &error));
        }
    }
    let (environment, path) = environment(program, &found, open_port.is_some());
    let groups = (!matches!(ids, IdMode::Single { .. })).then(|| found.groups.clone());
    let identity = Identity { uid: found.uid, gid: found.gid, groups };
    // The supervisor's descriptors go before its power does: nothing is left for anybody inside to take.
    let report = match sys::close_all_but(report, open_port.as_ref()) {
        Ok(report) => report,
        Err(error) => fail(report, kernel_failure("closing descriptors", &error)),
    };
    let report = &report;
    if let Err((step, error)) = walls::close_in(&identity, program.capabilities, walls, filter) {
        fail(report, kernel_failure(step, &error));
    }
    // Changing the user cleared it.
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

/// Streams, working folder and user namespace: what still needs the privileges of set-up.
fn settle(
    ids: IdMode,
    program: &Program<'_>,
    found: &FoundUser,
    entry: UserEntry<'_>,
    streams: &Streams,
    report: &OwnedFd,
) -> Step<()> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if program.make_working_dir && !Path::new(program.working_dir).exists() {
        let (uid, gid) = ids.root_seen_by_setup();
        make_folders(Path::new(program.working_dir), uid, gid).step("making the working folder")?;
    }
    if program.make_working_dir {
        give_home(ids, found);
    }
    set_limits(ids).step("setting resource limits")?;
    match streams {
        Streams::Pipes { stdin, stdout, stderr } => {
            for (fd, number) in [(stdin, 0), (stdout, 1), (stderr, 2)] {
                sys::dup_onto(fd.as_fd(), number).step("setting the standard streams")?;
            }
            give_streams(ids, found)?;
        }
        Streams::Terminal { rows, columns } => open_terminal(*rows, *columns, ids, found, report)?,
    }
    match entry {
        UserEntry::Join(user) => sys::setns(user, libc::CLONE_NEWUSER).step("joining the user namespace")?,
        UserEntry::Nest => nest_user(found).step("making the container's user namespace")?,
        UserEntry::Inside => {}
    }
    // From here on the process looks like one of the sandbox's own, and must not be open to them.
    sys::set_dumpable(false).step("closing the process to tracing")
}

/// Makes the pipes the process's own, so that it can open `/dev/stdout` again by name.
fn give_streams(ids: IdMode, found: &FoundUser) -> Step<()> {
    let Some((uid, gid)) = host_ids(ids, found) else { return Ok(()) };
    for stream in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        // Anything else, /dev/null above all, belongs to the host: root could give it away, and the sandbox would own it.
        let mode = rustix::fs::fstat(stream).step("looking at a stream")?.st_mode;
        if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::Fifo {
            continue;
        }
        match rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid))) {
            // A pipe that is not ours to give stays as it is.
            Ok(()) | Err(rustix::io::Errno::PERM | rustix::io::Errno::INVAL | rustix::io::Errno::ROFS) => {}
            Err(error) => return Err(("giving the streams to the user", error.into())),
        }
    }
    Ok(())
}

/// The user as the process doing the set-up must name it, when it can name it at all.
fn host_ids(ids: IdMode, found: &FoundUser) -> Option<(u32, u32)> {
    ids.seen_by_setup(found.uid).zip(ids.seen_by_setup(found.gid))
}

/// Whether the Pod has the ids of a user. Where there are few, an image may name one that is not among them.
fn check_ids(ids: IdMode, found: &FoundUser) -> Result<(), String> {
    let IdMode::Subordinate { count, .. } = ids else { return Ok(()) };
    match found.groups.iter().chain([&found.uid, &found.gid]).find(|id| ids.seen_by_setup(**id).is_none()) {
        Some(id) => Err(format!(
            "user or group {id} is outside the {count} ids that this sandbox has of your subordinate ids; add more to /etc/subuid and /etc/subgid (1,048,576 give every sandbox 65,536)"
        )),
        None => Ok(()),
    }
}

/// Gives the user's home to it where the image's files cannot be shifted, and belong to nobody inside.
fn give_home(ids: IdMode, found: &FoundUser) {
    let (IdMode::Subordinate { .. }, Some((uid, gid))) = (ids, host_ids(ids, found)) else { return };
    let home = Path::new(&found.home);
    let is_nobodys = fs::symlink_metadata(home).is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == 0);
    if is_nobodys && home != Path::new("/") {
        // On a read-only root it stays as it is, which everybody inside may read.
        let _ = std::os::unix::fs::lchown(home, Some(uid), Some(gid));
    }
}

fn open_terminal(rows: u16, columns: u16, ids: IdMode, found: &FoundUser, report: &OwnedFd) -> Step<()> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty()).step("opening a terminal")?;
    rustix::pty::unlockpt(&master).step("unlocking the terminal")?;
    let name = rustix::pty::ptsname(&master, Vec::new()).step("naming the terminal")?;
    let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).step("opening the terminal")?;
    if let Some((uid, gid)) = host_ids(ids, found) {
        let _ = gid;
        rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(uid)), None)
            .step("giving the terminal to the user")?;
    }
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&master, size).step("sizing the terminal")?;
    wire::send(report, &Report::Terminal, &[master.as_fd()]).step("handing out the terminal")?;
    sys::take_terminal(slave.as_fd()).step("taking the terminal")?;
    (0..=2).try_for_each(|number| sys::dup_onto(slave.as_fd(), number)).step("setting the standard streams")
}

/// A user namespace in which the only id there is carries the wanted number.
fn nest_user(found: &FoundUser) -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{} 0 1", found.uid))?;
    fs::write("/proc/self/gid_map", format!("{} 0 1", found.gid))
}

fn set_limits(ids: IdMode) -> io::Result<()> {
    sys::set_limit(libc::RLIMIT_CORE, 0, 0)?;
    let hard = open_files();
    sys::set_limit(libc::RLIMIT_NOFILE, hard, hard)?;
    if !ids.is_privileged() {
        let processes = rustix::process::getrlimit(rustix::process::Resource::Nproc);
        let hard = processes.maximum.unwrap_or(ROOTLESS_PROCESSES).min(ROOTLESS_PROCESSES);
        sys::set_limit(libc::RLIMIT_NPROC, hard, hard)?;
    }
    Ok(())
}

/// How many files a process of a sandbox may have open on this host.
pub(crate) fn open_files() -> u64 {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES)
}

/// Open files per process; far above what programs use, far below what a loop over all of them notices.
const OPEN_FILES: u64 = 65_536;
/// Processes per user namespace where no control group can count them.
const ROOTLESS_PROCESSES: u64 = 1_024;

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
    // Nobody is left to tell when this fails: the exit code says the rest.
    let _ = wire::send(report, &Report::Failed(failure), &[]);
    sys::lent::end(127)
}
