//! Creates what all containers of the Pod share: first the base, which is the same for any Pod, then the Pod itself.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::kernel::container::launch::PodNamespaces;
use crate::kernel::container::oci;
use crate::kernel::container::rootfs::{
    LOW_PORTS, memory_volume_path, new_mount, opens_low_ports, own_files, own_files_dir,
};
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::host::cgroup;
use crate::kernel::host::ids::subordinate;
use crate::kernel::host::user_limits;
use crate::kernel::net;
use crate::kernel::supervisor::plan::{IdMode, PodBasePlan, PodPlan};
use crate::kernel::sys::{self, ATTR_NODEV, ATTR_NOSUID, Fork};
use crate::runtime::RuntimeHandler;

/// The base of a Pod, created.
pub(super) struct PodBase {
    pub(super) namespaces: PodNamespaces,
    /// The supervisor's own pid namespace, to return to after forking into a container's.
    pub(super) own_pid_namespace: OwnedFd,
    pub(super) own_net_namespace: OwnedFd,
}

impl PodBase {
    /// Creates cgroups, the user, network, ipc and uts namespaces, and the veth.
    pub(super) fn create(plan: &PodBasePlan) -> StepResult<Self> {
        plan.cgroup.create().step("making the Pod's control groups")?;
        enter_supervisor_cgroup(plan).step("entering the supervisor's control groups")?;
        lower_oom_score();
        let own_net_namespace = fs::File::open("/proc/self/ns/net").step("opening a namespace")?.into();
        let callers_limits = user_limits::of_caller();
        match plan.ids {
            IdMode::Block { .. } => {}
            IdMode::Subordinate { first_uid, first_gid, count } => {
                subordinate::enter(&[(first_uid, count)], &[(first_gid, count)])
                    .step("making the Pod's outer user namespace")?;
            }
            IdMode::Single { uid, gid } => become_single(uid, gid).step("making the Pod's user namespace")?,
        }
        if !plan.ids.is_privileged() {
            user_limits::give_a_share(&callers_limits).step("limiting what the kernel counts for your user")?;
        }
        let namespaces = shared_namespaces(plan)?;
        if let Some(veth) = &plan.veth {
            net::create_veth(veth, plan.address, namespaces.net.as_fd()).step("connecting the Pod's network")?;
        }
        let own_pid_namespace = fs::File::open("/proc/self/ns/pid").step("opening a namespace")?.into();
        Ok(Self { namespaces, own_pid_namespace, own_net_namespace })
    }
}

/// Configures the Pod on its base: limits, files, hostname, sysctls, memory volumes. Returns the host's mount namespace if
/// the supervisor has left it.
pub(super) fn configure(plan: &PodPlan, namespaces: &mut PodNamespaces) -> StepResult<Option<OwnedFd>> {
    let mut host_mounts = None;
    cgroup::apply(&plan.limits).step("setting the Pod's limits")?;
    set_hostname(plan, namespaces).step("naming the Pod's host")?;
    let uses_oci_runtime = matches!(plan.spec.handler, RuntimeHandler::Oci { .. });
    // Containers with the built-in isolation do that through their own /proc.
    let low_ports = (uses_oci_runtime && opens_low_ports(plan)).then_some((LOW_PORTS, "0"));
    let asked_for = plan.spec.sysctls.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let sysctls: Vec<_> = low_ports.into_iter().chain(asked_for).collect();
    if !sysctls.is_empty() {
        set_sysctls(&sysctls, namespaces).step("setting kernel sysctls")?;
    }
    if !plan.spec.memory_volumes.is_empty() || uses_oci_runtime {
        host_mounts = Some(fs::File::open("/proc/self/ns/mnt").step("opening a namespace")?.into());
        mount_memory_volumes(plan)?;
    }
    if uses_oci_runtime {
        write_etc(plan).step("writing the Pod's files")?;
        oci::prepare()?;
    }
    if plan.spec.share_processes {
        namespaces.shared_processes = Some(super::pause::start(plan, namespaces)?);
    }
    Ok(host_mounts)
}

/// Leaves the Pod's cgroups and removes them, and the node's cgroup if this was the last Pod.
pub(super) fn leave_cgroups(plan: &PodBasePlan) {
    let out = |folder: &Path| {
        let top = folder.parent().and_then(Path::parent).unwrap_or(folder);
        cgroup::write_control(&top.join("cgroup.procs"), "0")
    };
    let left = plan.cgroup.folders().try_for_each(out);
    if left.and_then(|()| plan.cgroup.remove()).is_ok() && plan.ends_with_node {
        for folder in plan.cgroup.folders().filter_map(Path::parent) {
            // Succeeds only if this was the node's last Pod.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// The supervisor is in a cgroup of the Pod, not in the node's, so that killing the node's cgroup does not kill it. In
/// v1 hierarchies it is in the Pod's own cgroup: what it forks is there from the start, and no process has to be moved
/// while a caller waits.
fn enter_supervisor_cgroup(plan: &PodBasePlan) -> io::Result<()> {
    if let Some(own) = &plan.supervisor_group {
        match fs::create_dir(own) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        cgroup::write_control(&own.join("cgroup.procs"), "0")?;
    }
    plan.cgroup.enter_v1()
}

/// The Pod's processes should be killed for lack of memory before the supervisor. Where its score may not be lowered,
/// theirs is raised.
fn lower_oom_score() {
    let _ = fs::write("/proc/self/oom_score_adj", "-999");
}

/// Enters the uts namespace to set the hostname. Without privilege the supervisor cannot return, and does not need to.
fn set_hostname(plan: &PodPlan, namespaces: &PodNamespaces) -> io::Result<()> {
    let own = fs::File::open("/proc/self/ns/uts")?;
    sys::setns(namespaces.uts.as_fd(), libc::CLONE_NEWUTS)?;
    let named = rustix::system::sethostname(plan.spec.hostname.as_bytes());
    if plan.ids.is_privileged() {
        sys::setns(own.as_fd(), libc::CLONE_NEWUTS)?;
    }
    Ok(named?)
}

/// A child joins the namespaces whose sysctls are set.
fn set_sysctls(sysctls: &[(&str, &str)], namespaces: &PodNamespaces) -> io::Result<()> {
    match sys::fork_with(0)? {
        Fork::Child => {
            let work = || -> io::Result<()> {
                sys::setns(namespaces.net.as_fd(), libc::CLONE_NEWNET)?;
                sys::setns(namespaces.ipc.as_fd(), libc::CLONE_NEWIPC)?;
                sysctls.iter().try_for_each(|(name, value)| write_sysctl(name, value))
            };
            sys::exit_now(work().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)))
        }
        Fork::Parent(pid) => match libc::WEXITSTATUS(sys::wait_for(pid)?) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
    }
}

fn write_sysctl(name: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/{}", name.replace('.', "/")), value)
}

/// OCI runtimes need files to mount; the built-in isolation mounts text directly.
fn write_etc(plan: &PodPlan) -> io::Result<()> {
    let folder = own_files_dir(&plan.dir);
    match fs::create_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    own_files(plan).into_iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}

/// Enters a user namespace in which the caller's only id is root, with all capabilities over what is created in it.
fn become_single(uid: u32, gid: u32) -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// A short-lived child creates the namespaces; the supervisor keeps them open and needs no process in them.
fn shared_namespaces(plan: &PodBasePlan) -> StepResult<PodNamespaces> {
    let own_user = plan.ids.has_block() && plan.isolation.user_namespace;
    let mut flags = libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if own_user {
        flags |= libc::CLONE_NEWUSER;
    }
    if plan.isolation.network_namespace {
        flags |= libc::CLONE_NEWNET;
    }
    let inspect = |pid| open_namespaces(plan, pid, own_user);
    match plan.ids {
        // The child creates them as the Pod's own user: what the kernel counts per user (inotify instances, timers,
        // queued signals, message queues, namespaces) is then counted for the Pod's block and not for the host's root.
        IdMode::Block { first } if own_user => {
            let prepare = || {
                sys::own_new_namespaces_as(first)?;
                sys::unshare(flags)?;
                configure_inside(plan)
            };
            sys::clone_vm::in_namespaces(0, &prepare, inspect)
        }
        _ => sys::clone_vm::in_namespaces(flags, &|| configure_inside(plan), inspect),
    }
    .step("making the Pod's namespaces")
}

fn open_namespaces(plan: &PodBasePlan, pid: i32, own_user: bool) -> io::Result<PodNamespaces> {
    let user = if own_user {
        fs::write(format!("/proc/{pid}/uid_map"), plan.ids.map())?;
        fs::write(format!("/proc/{pid}/gid_map"), plan.ids.map())?;
        Some(sys::open_namespace(pid, "user")?)
    } else {
        None
    };
    Ok(PodNamespaces {
        user,
        net: sys::open_namespace(pid, "net")?,
        ipc: sys::open_namespace(pid, "ipc")?,
        uts: sys::open_namespace(pid, "uts")?,
        shared_processes: None,
    })
}

/// Configures the loopback interface, in the child that owns the new namespaces.
fn configure_inside(plan: &PodBasePlan) -> io::Result<()> {
    if !plan.isolation.network_namespace {
        return Ok(());
    }
    net::loopback_up()?;
    if plan.veth.is_none() {
        net::disable_ipv6_by_default();
        // Without a veth the address is on the loopback interface: programs may bind it, and the node connects from
        // within.
        net::loopback_address(plan.address, true)?;
    }
    Ok(())
}

/// Memory volumes, and the bundles of OCI runtimes, are in a mount namespace of the supervisor: they are unmounted with
/// it, and not visible on the host.
fn mount_memory_volumes(plan: &PodPlan) -> StepResult<()> {
    sys::unshare(libc::CLONE_NEWNS).step("making the supervisor's mount namespace")?;
    sys::make_private_recursive(c"/").step("making mounts private")?;
    let (uid, gid) = plan.ids.root_seen_by_setup();
    let (uid, gid) = (uid.to_string(), gid.to_string());
    for (name, size) in &plan.spec.memory_volumes {
        let path = memory_volume_path(&plan.dir, name);
        fs::create_dir_all(&path).step("making a memory volume")?;
        let size = size.map(|bytes| bytes.to_string());
        let mut options = vec![("mode", "0777"), ("uid", uid.as_str()), ("gid", gid.as_str())];
        if let Some(size) = &size {
            options.push(("size", size));
        }
        let mount = new_mount("tmpfs", &options, ATTR_NOSUID | ATTR_NODEV).step("making a memory volume")?;
        let flags = rustix::mount::MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&mount, "", rustix::fs::CWD, &path, flags).step("attaching a memory volume")?;
    }
    Ok(())
}
