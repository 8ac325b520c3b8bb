//! `config.json` of a bundle and the process document of a command: pure, given the plan and the user.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Convention;
use super::seccomp_profile::profile;
use crate::kernel::container::launch::with_defaults;
use crate::kernel::container::rootfs::{MAX_TERMINALS, MountStep};
use crate::kernel::container::seccomp::FileModes;
use crate::kernel::container::user::FoundUser;
use crate::kernel::host::cgroup::CgroupPlan;
use crate::kernel::supervisor::plan::{BLOCK_SIZE, ContainerPlan, IdMode, PodPlan};
use crate::runtime::{Capability, Limits};

/// Namespaces of the Pod, as paths that the runtime can open.
#[derive(Debug, Clone)]
pub(crate) struct NamespacePaths {
    pub(crate) user: Option<PathBuf>,
    pub(crate) net: PathBuf,
    pub(crate) ipc: PathBuf,
    pub(crate) uts: PathBuf,
    /// The pid namespace that all containers share, if they do.
    pub(crate) pid: Option<PathBuf>,
}

/// A bind mount prepared by the bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreparedBind {
    pub(crate) source: PathBuf,
    pub(crate) target: String,
    pub(crate) read_only: bool,
}

/// What differs between a container's first process and a command run in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process<'a> {
    pub(crate) command: &'a [String],
    pub(crate) env: &'a [(String, String)],
    pub(crate) working_dir: &'a str,
    pub(crate) user: &'a FoundUser,
    pub(crate) capabilities: &'a [Capability],
    pub(crate) terminal: bool,
    pub(crate) oom_score_adj: i32,
    /// Maximum number of open files, where the runtime sets it; more than this host's own limit cannot be set. `None`:
    /// the container inherits the limits of the runtime's program.
    pub(crate) open_files: Option<u64>,
    pub(crate) hostname: &'a str,
}

/// The `process` object; also the document for `exec --process`.
pub(crate) fn process_document(process: &Process<'_>) -> Value {
    let names: Vec<String> = process.capabilities.iter().map(|c| format!("CAP_{}", c.name())).collect();
    let env = with_defaults(process.env, &process.user.home, process.hostname);
    let env: Vec<String> = env.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    json!({
        "terminal": process.terminal,
        "user": {"uid": process.user.uid, "gid": process.user.gid, "additionalGids": process.user.groups},
        "args": process.command,
        "env": env,
        "cwd": process.working_dir,
        "capabilities": {"bounding": names, "effective": names, "permitted": names, "inheritable": names,
            "ambient": names},
        "rlimits": process.open_files.map_or_else(Vec::new, |files| vec![
            json!({"type": "RLIMIT_NOFILE", "hard": files, "soft": files}),
            json!({"type": "RLIMIT_CORE", "hard": 0, "soft": 0}),
        ]),
        "noNewPrivileges": true,
        "oomScoreAdj": process.oom_score_adj,
    })
}

/// The whole configuration of a container.
pub(super) fn document(
    pod: &PodPlan,
    container: &ContainerPlan,
    convention: Convention,
    namespaces: &NamespacePaths,
    user: &FoundUser,
    rootfs: &Path,
    binds: &[PreparedBind],
) -> Value {
    let spec = &container.spec;
    let process = Process {
        command: &spec.command,
        env: &spec.env,
        working_dir: &spec.working_dir,
        user,
        capabilities: &spec.capabilities,
        terminal: spec.tty,
        oom_score_adj: spec.oom_score_adj,
        open_files: convention.open_files(),
        hostname: &pod.spec.hostname,
    };
    let steps = crate::kernel::container::rootfs::plan_root(pod, container).steps;
    let picked = |pick: fn(&MountStep) -> Option<&String>| steps.iter().filter_map(pick).collect::<Vec<_>>();
    let masked = picked(|step| match step {
        MountStep::HideFile { target } | MountStep::HideFolder { target } => Some(target),
        _ => None,
    });
    let read_only = picked(|step| match step {
        MountStep::ReadOnly { target } => Some(target),
        _ => None,
    });
    let mut linux = json!({
        "namespaces": namespace_list(convention, namespaces),
        "maskedPaths": masked,
        "readonlyPaths": read_only,
        "seccomp": profile(FileModes::of(spec)),
        "rootfsPropagation": "private",
    });
    if let (true, IdMode::Block { first }) = (convention.user_namespace, pod.ids) {
        let map = json!([{"containerID": 0, "hostID": first, "size": BLOCK_SIZE}]);
        linux["uidMappings"] = map.clone();
        linux["gidMappings"] = map;
    }
    if let Some(path) = groups_path(&container.cgroup).filter(|_| !convention.cgroups_managed_by_node) {
        linux["cgroupsPath"] = path.into();
        linux["resources"] = resources(&spec.limits);
    }
    let mut document = json!({
        "ociVersion": "1.0.2",
        "process": process_document(&process),
        "root": {"path": rootfs, "readonly": spec.read_only_root},
        "mounts": mounts(&steps, binds),
        "annotations": {"io.kubernetes.cri.container-type": "sandbox"},
        "linux": linux,
    });
    if convention.has_own_kernel() {
        // A runtime with its own kernel does not see the hostname of the uts namespace that it joins.
        document["hostname"] = pod.spec.hostname.as_str().into();
    }
    document
}

fn namespace_list(convention: Convention, paths: &NamespacePaths) -> Value {
    let joined = |kind: &str, path: &Path| json!({"type": kind, "path": path});
    let mut list = vec![json!({"type": "mount"}), json!({"type": "cgroup"})];
    list.push(match &paths.pid {
        Some(path) => joined("pid", path),
        None => json!({"type": "pid"}),
    });
    list.extend([joined("network", &paths.net), joined("ipc", &paths.ipc), joined("uts", &paths.uts)]);
    if let Some(user) = paths.user.as_ref().filter(|_| convention.user_namespace) {
        list.push(joined("user", user));
    }
    list.into()
}

fn mounts(steps: &[MountStep], binds: &[PreparedBind]) -> Vec<Value> {
    let mount = |target: &str, kind: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": kind, "options": options});
    let mut list: Vec<Value> = steps
        .iter()
        .filter_map(|step| match step {
            MountStep::Proc { target, .. } => Some(mount(target, "proc", &["nosuid", "nodev", "noexec"])),
            MountStep::Sys { target } => Some(mount(target, "sysfs", &["nosuid", "nodev", "noexec", "ro"])),
            MountStep::MessageQueues { target } => Some(mount(target, "mqueue", &["nosuid", "nodev", "noexec"])),
            MountStep::Terminals { target, .. } => {
                let max = format!("max={MAX_TERMINALS}");
                let options = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", &max];
                Some(mount(target, "devpts", &options))
            }
            MountStep::Devices { target } => {
                Some(mount(target, "tmpfs", &["nosuid", "noexec", "mode=755", "size=64k"]))
            }
            MountStep::Memory { target, size, mode, no_exec } => {
                let (mode, size) = (format!("mode={mode}"), size.map(|bytes| format!("size={bytes}")));
                let mut options = vec!["nosuid", "nodev", mode.as_str()];
                options.extend(size.as_deref());
                options.extend(no_exec.then_some("noexec"));
                Some(mount(target, "tmpfs", &options))
            }
            // Runtimes create the usual links and cover paths by themselves; binds, of which a termination message is
            // one, follow below.
            MountStep::Link { .. }
            | MountStep::Bind { .. }
            | MountStep::Text { .. }
            | MountStep::Message { .. }
            | MountStep::HideFile { .. }
            | MountStep::HideFolder { .. }
            | MountStep::ReadOnly { .. }
            | MountStep::KeepOnly { .. } => None,
        })
        .collect();
    list.extend(binds.iter().map(|bind| {
        let write = if bind.read_only { "ro" } else { "rw" };
        json!({"destination": bind.target, "type": "bind", "source": bind.source,
            "options": ["rbind", "rprivate", "nosuid", "nodev", write]})
    }));
    list
}

/// A cgroup's path below the mount point of its hierarchy, which is the same in every hierarchy.
pub(super) fn groups_path(group: &CgroupPlan) -> Option<String> {
    let folder = group.unified.as_ref().or(group.v1.first())?;
    let parts: Vec<_> = folder.components().map(|c| c.as_os_str().to_string_lossy()).collect();
    let start = parts.iter().position(|part| part.starts_with("agent-sandbox-"))?;
    Some(format!("/{}", parts[start..].join("/")))
}

fn resources(limits: &Limits) -> Value {
    let mut resources = json!({"devices": [{"allow": false, "access": "rwm"}]});
    if let Some(bytes) = limits.memory_bytes {
        resources["memory"] = json!({"limit": bytes});
    }
    if let Some(millis) = limits.cpu_millis {
        resources["cpu"] = json!({"quota": millis.saturating_mul(100), "period": 100_000});
    }
    if let Some(pids) = limits.pids {
        resources["pids"] = json!({"limit": pids});
    }
    resources
}
