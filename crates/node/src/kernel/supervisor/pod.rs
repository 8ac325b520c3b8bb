//! Making what all containers of the Pod share: first its ground, which any Pod could stand on, then the Pod itself.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use super::super::cgroup;
use super::super::ids::subordinate;
use super::super::launch::PodNamespaces;
use super::super::net;
use super::super::oci;
use super::super::plan::{GroundPlan, IdMode, PodPlan};
use super::super::rootfs::{LOW_PORTS, memory_volume_path, new_mount, opens_low_ports, own_files, own_files_dir};
use super::super::sys::{self, ATTR_NODEV, ATTR_NOSUID, Fork};
use super::super::walls::{Named, Step};
use crate::runtime::RuntimeHandler;

/// Everything the Pod stands on, made.
pub(super) struct Ground {
    pub(super) namespaces: PodNamespaces,
    /// Our own process namespace, to come back to after forking into a container's.
    pub(super) own_pid_namespace: OwnedFd,
    pub(super) own_net_namespace: OwnedFd,
}

impl Ground {
    /// Makes groups, user, network, ipc and uts namespaces and the cable.
    pub(super) fn make(plan: &GroundPlan) -> Step<Self> {
        plan.cgroup.create().step("making the Pod's control groups")?;
        enter_own_groups(plan).step("entering the supervisor's control groups")?;
        spare_from_oom();
        let own_net_namespace = fs::File::open("/proc/self/ns/net").step("opening a namespace")?.into();
        match plan.ids {
            IdMode::Block { .. } => {}
            IdMode::Subordinate { first_uid, first_gid, count } => {
                subordinate::enter(&[(first_uid, count)], &[(first_gid, count)])
                    .step("making the Pod's outer user namespace")?;
            }
            IdMode::Single { uid, gid } => become_single(uid, gid).step("making the Pod's user namespace")?,
        }
        let namespaces = shared_namespaces(plan)?;
        if let Some(veth) = &plan.veth {
            net::connect(veth, plan.address, namespaces.net.as_fd()).step("connecting the Pod's network")?;
        }
        let own_pid_namespace = fs::File::open("/proc/self/ns/pid").step("opening a namespace")?.into();
        Ok(Self { namespaces, own_pid_namespace, own_net_namespace })
    }
}

/// Makes of its ground the Pod itself: limits, files, names, memory volumes.
pub(super) fn settle(plan: &PodPlan, namespaces: &mut PodNamespaces) -> Step<()> {
    cgroup::apply(&plan.limits).step("setting the Pod's limits")?;
    name_host(plan, namespaces).step("naming the Pod's host")?;
    let is_foreign = matches!(plan.spec.handler, RuntimeHandler::Oci { .. });
    // Our own containers do that with their own /proc.
    let low_ports = (is_foreign && opens_low_ports(plan)).then_some((LOW_PORTS, "0"));
    let asked_for = plan.spec.sysctls.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let parameters: Vec<_> = low_ports.into_iter().chain(asked_for).collect();
    if !parameters.is_empty() {
        set_parameters(&parameters, namespaces).step("setting kernel parameters")?;
    }
    if !plan.spec.memory_volumes.is_empty() || is_foreign {
        memory_volumes(plan)?;
    }
    if is_foreign {
        write_etc(plan).step("writing the Pod's files")?;
        oci::prepare()?;
    }
    if plan.spec.share_processes {
        namespaces.shared_processes = Some(super::pause::start(plan, namespaces)?);
    }
    Ok(())
}

/// Leaves the Pod's groups and removes them, and the node's when this was the last Pod.
pub(super) fn leave(plan: &GroundPlan) {
    let out = |folder: &Path| {
        let top = folder.parent().and_then(Path::parent).unwrap_or(folder);
        cgroup::write_control(&top.join("cgroup.procs"), "0")
    };
    let left = plan.cgroup.folders().try_for_each(out);
    if left.and_then(|()| plan.cgroup.remove()).is_ok() && plan.ends_with_node {
        for folder in plan.cgroup.folders().filter_map(Path::parent) {
            // Empty only when this was the node's last Pod.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// The supervisor lives in a group of the Pod's, not in the node's, so that ending the node's leaves it alone. In v1 trees it
/// is in the Pod's own group: what it forks is there from the first moment, and nothing has to be moved while somebody waits.
fn enter_own_groups(plan: &GroundPlan) -> io::Result<()> {
    if let Some(own) = &plan.supervisor_group {
        match fs::create_dir(own) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        cgroup::write_control(&own.join("cgroup.procs"), "0")?;
    }
    plan.cgroup.enter_v1()
}

/// The Pod's processes should die for lack of memory before we do; where we may not ask for that, theirs is raised.
fn spare_from_oom() {
    let _ = fs::write("/proc/self/oom_score_adj", "-999");
}

/// The uts namespace is entered for a moment; without privilege there is no way back, and no need.
fn name_host(plan: &PodPlan, namespaces: &PodNamespaces) -> io::Result<()> {
    let own = fs::File::open("/proc/self/ns/uts")?;
    sys::setns(namespaces.uts.as_fd(), libc::CLONE_NEWUTS)?;
    let named = rustix::system::sethostname(plan.spec.hostname.as_bytes());
    if plan.ids.is_privileged() {
        sys::setns(own.as_fd(), libc::CLONE_NEWUTS)?;
    }
    Ok(named?)
}

/// A child joins the namespaces whose parameters are set.
fn set_parameters(parameters: &[(&str, &str)], namespaces: &PodNamespaces) -> io::Result<()> {
    match sys::fork_with(0)? {
        Fork::Child => {
            let work = || -> io::Result<()> {
                sys::setns(namespaces.net.as_fd(), libc::CLONE_NEWNET)?;
                sys::setns(namespaces.ipc.as_fd(), libc::CLONE_NEWIPC)?;
                parameters.iter().try_for_each(|(name, value)| write_parameter(name, value))
            };
            sys::exit_now(work().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)))
        }
        Fork::Parent(pid) => match libc::WEXITSTATUS(sys::wait_for(pid)?) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
    }
}

fn write_parameter(name: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/{}", name.replace('.', "/")), value)
}

/// Other runtimes show files, where ours shows text.
fn write_etc(plan: &PodPlan) -> io::Result<()> {
    let folder = own_files_dir(&plan.dir);
    match fs::create_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    own_files(plan).into_iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}

/// Enters a user namespace in which the caller's one id is root, with full power over what is made in it.
fn become_single(uid: u32, gid: u32) -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// A short-lived child makes the namespaces; we keep them open and need no process in them.
fn shared_namespaces(plan: &GroundPlan) -> Step<PodNamespaces> {
    let own_user = plan.ids.has_block() && plan.walls.user_namespace;
    let mut flags = libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if own_user {
        flags |= libc::CLONE_NEWUSER;
    }
    if plan.walls.network_namespace {
        flags |= libc::CLONE_NEWNET;
    }
    sys::twin::in_namespaces(flags, &|| configure_inside(plan), |pid| open_all(plan, pid, own_user))
        .step("making the Pod's namespaces")
}

fn open_all(plan: &GroundPlan, pid: i32, own_user: bool) -> io::Result<PodNamespaces> {
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

/// The loopback that every Pod has, by the child that owns the new namespaces.
fn configure_inside(plan: &GroundPlan) -> io::Result<()> {
    if !plan.walls.network_namespace {
        return Ok(());
    }
    net::loopback_up()?;
    if plan.veth.is_none() {
        net::no_ipv6();
        // Without a cable the address still exists inside: programs may bind it, and the node dials from within.
        net::loopback_address(plan.address, true)?;
    }
    Ok(())
}

/// Memory volumes, and the bundles of other runtimes, live in a mount namespace of the supervisor's own: they end with it,
/// and the host never sees them.
fn memory_volumes(plan: &PodPlan) -> Step<()> {
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
