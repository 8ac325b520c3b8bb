//! Isolation by an OCI runtime of this host, through the bundle and command-line convention (create, start, kill,
//! delete, exec). The Pod's own supervisor stays the parent: it creates the bundle, reads the output and records the
//! exit.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::PidfdFlags;

use crate::kernel::container::launch::{open_files, set_process_limits};
use crate::kernel::host::cgroup::{self, CgroupPlan};
use crate::kernel::supervisor::plan::{ContainerPlan, PodPlan};
use crate::kernel::supervisor::protocol::Failure;
use crate::kernel::sys::{self, Fork};
use crate::runtime::RuntimeHandler;

mod bundle;
mod config;
mod console;
mod seccomp_profile;

pub(crate) use bundle::{Bundle, prepare};
pub(crate) use config::{NamespacePaths, Process, process_document};
pub(crate) use console::Console;

/// Timeout for one command of a runtime; those that start a virtual machine need seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// How one runtime program is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Convention {
    /// Options before every command.
    options: &'static [&'static str],
    /// The program is told not to touch cgroups and runs in the container's own from the start.
    pub(crate) cgroups_managed_by_node: bool,
    /// Root inside is the first id of the Pod's block; runtimes with a kernel of their own manage users themselves.
    pub(crate) user_namespace: bool,
    /// The program refuses to run where cgroups of both versions are visible.
    hide_unified: bool,
    /// The program takes a network namespace with these sysctls for the host's own, and refuses it: older releases of
    /// gVisor do, since newer kernels show more of them in every namespace.
    hide_network_settings: bool,
}

/// The folder of all network sysctls: the folders below differ between network namespaces, this one does not.
const NETWORK_SETTINGS: &str = "/proc/sys/net";

impl Convention {
    /// The limit that the runtime sets for the container's processes. In a user namespace of the Pod's own user that needs
    /// a capability which root may lack, so that the limits are inherited instead.
    pub(crate) fn open_files(self) -> Option<u64> {
        (!self.user_namespace).then(open_files)
    }

    /// Determined by the program's name; an unknown program is treated like runc, which set the convention.
    pub(crate) fn of(program: &str) -> Self {
        let plain = Self {
            options: &[],
            cgroups_managed_by_node: false,
            user_namespace: true,
            hide_unified: false,
            hide_network_settings: false,
        };
        match Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or_default() {
            "crun" => Self {
                options: &["--cgroup-manager=disabled"],
                cgroups_managed_by_node: true,
                hide_unified: true,
                ..plain
            },
            // Without its own overlay, so that writes reach the layer that suspend and resume keep.
            "runsc" => Self {
                options: &["--ignore-cgroups", "--overlay2=none"],
                cgroups_managed_by_node: true,
                user_namespace: false,
                hide_network_settings: true,
                ..plain
            },
            name if name.starts_with("kata") => Self { user_namespace: false, ..plain },
            _ => plain,
        }
    }

    /// The convention of a Pod's runtime; `None` for the built-in isolation.
    pub(crate) fn of_handler(handler: &RuntimeHandler) -> Option<Self> {
        match handler {
            RuntimeHandler::Oci { program, .. } => Some(Self::of(program)),
            RuntimeHandler::BuiltIn => None,
        }
    }

    /// Whether system calls, and with them process ids, users and the network, are handled by a kernel other than the
    /// host's.
    pub(crate) fn has_own_kernel(self) -> bool {
        !self.user_namespace
    }
}

/// One runtime program for one Pod.
#[derive(Debug, Clone)]
pub(crate) struct OciRuntime {
    program: PathBuf,
    convention: Convention,
    /// The program's state folder; removed with the Pod's folder.
    state: PathBuf,
    /// The unified cgroup hierarchy, if it has to be hidden from the program.
    hidden: Option<PathBuf>,
}

/// The path of a program, if it is installed.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    if Path::new(program).is_absolute() {
        return Path::new(program).exists().then(|| program.into());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    // Supervisors have no environment at all, and services a short `PATH`.
    let usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&folders).chain(usual).map(|folder| folder.join(program)).find(|path| path.exists())
}

impl OciRuntime {
    /// The runtime a Pod asks for; `None` for the built-in isolation.
    pub(crate) fn of(pod: &PodPlan) -> Result<Option<Self>, Failure> {
        let RuntimeHandler::Oci { handler, program } = &pod.spec.handler else { return Ok(None) };
        let missing = || Failure::Protocol { message: format!("runtime {handler}: {program} is not installed") };
        let found = find_program(program).ok_or_else(missing)?;
        let convention = Convention::of(program);
        let unified = pod.cgroup.unified.as_ref().filter(|_| convention.hide_unified && !pod.cgroup.v1.is_empty());
        let hidden = unified.and_then(|folder| mount_point_above(folder));
        Ok(Some(Self { program: found, convention, state: pod.dir.join("oci/state"), hidden }))
    }

    pub(crate) fn convention(&self) -> Convention {
        self.convention
    }

    fn name(&self) -> String {
        self.program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Creates the container's first process, which waits for [`OciRuntime::start`]. Returns its pid on this host.
    pub(crate) fn create(
        &self,
        container: &ContainerPlan,
        bundle: &Bundle,
        streams: &[OwnedFd; 3],
        console: Option<&Path>,
    ) -> Result<i32, Failure> {
        let pid_file = bundle.dir().join("pid");
        let mut arguments = vec!["create".to_owned(), "--bundle".to_owned(), text(bundle.dir())];
        arguments.extend(["--pid-file".to_owned(), text(&pid_file)]);
        if let Some(console) = console {
            arguments.extend(["--console-socket".to_owned(), text(console)]);
        }
        arguments.push(container.id.clone());
        let log = bundle.dir().join("runtime.log");
        let groups = self.convention.cgroups_managed_by_node.then_some(container);
        let code = self.run(&arguments, Some(&log), Some(streams), groups)?;
        if code != 0 {
            return Err(self.failure_from_log("create", &log, container));
        }
        let pid = fs::read_to_string(&pid_file).ok().and_then(|text| text.trim().parse().ok());
        pid.ok_or_else(|| Failure::Protocol { message: format!("{} create wrote no pid", self.name()) })
    }

    /// Starts the container's own command.
    pub(crate) fn start(&self, container: &ContainerPlan, bundle: &Bundle) -> Result<(), Failure> {
        let log = bundle.dir().join("runtime.log");
        match self.run(&["start".to_owned(), container.id.clone()], Some(&log), None, None)? {
            0 => Ok(()),
            _ => Err(self.failure_from_log("start", &log, container)),
        }
    }

    /// Sends a signal through the runtime. Returns whether the program succeeded.
    pub(crate) fn kill(&self, id: &str, signal: i32) -> bool {
        let arguments = ["kill".to_owned(), id.to_owned(), signal.to_string()];
        self.run(&arguments, None, None, None).is_ok_and(|code| code == 0)
    }

    /// Deletes a container that has exited.
    pub(crate) fn delete(&self, id: &str) {
        let _ = self.run(&["delete".to_owned(), "--force".to_owned(), id.to_owned()], None, None, None);
    }

    /// Executes the program that runs a command in a container, in the foreground: it exits with the command. Never
    /// returns.
    pub(crate) fn exec_here(&self, id: &str, process: &Path, pid_file: &Path) -> ! {
        let arguments = ["exec", "--process", &text(process), "--pid-file", &text(pid_file), id].map(str::to_owned);
        self.become_program(&arguments, None)
    }

    /// Runs one command until it exits; returns its exit code.
    fn run(
        &self,
        arguments: &[String],
        log: Option<&Path>,
        streams: Option<&[OwnedFd; 3]>,
        groups: Option<&ContainerPlan>,
    ) -> Result<i32, Failure> {
        let failed = |step: &'static str| move |error: io::Error| Failure::kernel(step, &error);
        let null = empty_stream().map_err(failed("making an empty stream"))?;
        let pid = match sys::fork_with(0).map_err(failed("forking"))? {
            Fork::Child => {
                sys::reset_signals();
                let given = [0, 1, 2].map(|index| streams.map_or(&null, |streams| &streams[index]));
                let in_cgroup = (0..3).zip(given).try_for_each(|(number, fd)| sys::dup_onto(fd.as_fd(), number));
                let entered = in_cgroup.and_then(|()| groups.map_or(Ok(()), |container| container.cgroup.enter()));
                if entered.is_err() {
                    sys::exit_now(127);
                }
                self.become_program(arguments, log)
            }
            Fork::Parent(pid) => pid,
        };
        wait_within(pid, COMMAND_TIMEOUT).map_err(|error| Failure::Kernel {
            step: format!("{} {}", self.name(), arguments.first().map_or("", String::as_str)),
            errno: error.raw_os_error().unwrap_or(libc::ETIMEDOUT),
        })
    }

    fn become_program(&self, arguments: &[String], log: Option<&Path>) -> ! {
        if self.hide_host_paths().is_err() {
            sys::exit_now(127);
        }
        let mut line = vec![text(&self.program), "--root".to_owned(), text(&self.state)];
        line.extend(log.iter().flat_map(|log| ["--log".to_owned(), text(log)]));
        line.extend(self.convention.options.iter().map(|option| (*option).to_owned()));
        line.extend(arguments.iter().cloned());
        let words: Vec<_> = line.into_iter().filter_map(|word| std::ffi::CString::new(word).ok()).collect();
        let environment = [c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        let _ = sys::close_from_on_exec(3);
        if self.convention.user_namespace && set_process_limits().is_err() {
            sys::exit_now(127);
        }
        if let Some(program) = words.first() {
            let _ = sys::exec(program, &words, &environment);
        }
        sys::exit_now(127)
    }

    /// Hides what the program must not see, in a mount namespace of its own.
    fn hide_host_paths(&self) -> io::Result<()> {
        if self.hidden.is_none() && !self.convention.hide_network_settings {
            return Ok(());
        }
        sys::unshare(libc::CLONE_NEWNS)?;
        sys::make_private_recursive(c"/")?;
        if let Some(unified) = &self.hidden {
            rustix::mount::unmount(unified, rustix::mount::UnmountFlags::DETACH)?;
        }
        if self.convention.hide_network_settings {
            let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
            rustix::mount::mount("none", NETWORK_SETTINGS, "tmpfs", flags, c"size=4k,mode=555")?;
        }
        Ok(())
    }

    /// The failure that the program wrote to its log.
    fn failure_from_log(&self, step: &str, log: &Path, container: &ContainerPlan) -> Failure {
        let text = fs::read_to_string(log).unwrap_or_default();
        let message = last_error(&text).unwrap_or_else(|| "no reason given".to_owned());
        let command = container.spec.command.first().cloned().unwrap_or_default();
        let about_command = message.contains(&command)
            && ["not found", "no such file", "permission denied", "not executable", "cannot find"]
                .iter()
                .any(|word| message.to_ascii_lowercase().contains(word));
        if about_command {
            let missing = ["not found", "no such file", "cannot find"]
                .iter()
                .any(|word| message.to_ascii_lowercase().contains(word));
            return Failure::CannotRun { command, message, missing };
        }
        Failure::Kernel { step: format!("{} {step} ({message})", self.name()), errno: libc::EIO }
    }
}

/// An empty stream: reads nothing, and discards what is written. It is a new file, so a runtime may change its owner.
pub(crate) fn empty_stream() -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create("nothing", rustix::fs::MemfdFlags::CLOEXEC)?)
}

/// The message of the last line of a log, in the formats of the known runtimes: plain, `msg="…"`, or JSON.
fn last_error(log: &str) -> Option<String> {
    let line = log.lines().rev().find(|line| !line.trim().is_empty() && !line.contains("level=warning"))?.trim();
    if let Ok(document) = serde_json::from_str::<serde_json::Value>(line) {
        return document["msg"].as_str().map(str::to_owned);
    }
    let quoted = line.split_once("msg=\"").and_then(|(_, rest)| rest.strip_suffix('"'));
    Some(quoted.map_or_else(|| line.to_owned(), |message| message.replace("\\\"", "\"")))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Waits for one child, without reaping other children.
fn wait_within(pid: i32, limit: Duration) -> io::Result<i32> {
    let known = rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    let handle = rustix::process::pidfd_open(known, PidfdFlags::empty())?;
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => {
                let _ = sys::kill(pid, libc::SIGKILL);
                let _ = sys::wait_for(pid);
                return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let status = sys::wait_for(pid)?;
    Ok(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) })
}

/// The mount point of the hierarchy that a cgroup is in.
fn mount_point_above(folder: &Path) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let unified = mounts.lines().filter(|line| line.contains(" - cgroup2 ")).filter_map(|line| line.split(' ').nth(4));
    unified.map(PathBuf::from).find(|point| folder.starts_with(point))
}

/// Removes cgroups that a runtime created for a Pod in hierarchies that the node does not use itself.
pub(crate) fn remove_leftover_cgroups(pod: &CgroupPlan) {
    let Some(path) = config::groups_path(pod) else { return };
    let path = Path::new(path.trim_start_matches('/'));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter(|line| line.contains(" - cgroup ")).filter_map(|line| line.split(' ').nth(4));
    for point in points.map(Path::new) {
        if cgroup::remove_tree(&point.join(path)).is_ok()
            && let Some(node) = path.parent()
        {
            // Succeeds for the node's last Pod only.
            let _ = fs::remove_dir(point.join(node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_each_runtime_is_parsed() {
        let runc =
            "time=\"t\" level=warning msg=\"x\"\ntime=\"t\" level=error msg=\"exec: \\\"/no\\\": no such file\"\n";
        assert_eq!(last_error(runc).as_deref(), Some("exec: \"/no\": no such file"));
        assert_eq!(last_error("executable file `x` not found\n\n").as_deref(), Some("executable file `x` not found"));
        assert_eq!(last_error("{\"level\":\"error\",\"msg\":\"bad\"}\n").as_deref(), Some("bad"));
        assert_eq!(last_error(""), None);
    }

    #[test]
    fn runtimes_are_known_by_name_and_unknown_ones_are_treated_like_runc() {
        assert!(Convention::of("/opt/bin/crun").cgroups_managed_by_node);
        assert!(!Convention::of("runsc").user_namespace);
        assert!(!Convention::of("kata-runtime").user_namespace);
        assert_eq!(Convention::of("youki"), Convention::of("runc"));
    }
}
