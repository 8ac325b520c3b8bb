//! The cgroup of this process in the unified hierarchy, by which the packet filter recognises the node's own
//! connections to Pods. Sockets keep the cgroup in which they were created: a socket that another program made is
//! rejected for every user, root included.
//!
//! The group is a child of the one that this process was started in, so that a service manager still finds the process.
//! All nodes of a process share it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::kernel::host::cgroup::write_control;

/// Name of the group.
const GROUP: &str = "agent-sandbox-engine";

/// The inode of the initial cgroup namespace. In another one, what the kernel takes as the level of a group depends on
/// its version.
const INITIAL_NAMESPACE: u64 = 0xEFFF_FFFB;

/// The group in the terms of nftables' `socket cgroupv2 level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EngineGroup {
    pub(super) id: u64,
    pub(super) level: u32,
}

/// Number of nodes of this process that use the group, and the group that the process came from.
static USERS: Mutex<(usize, Option<PathBuf>)> = Mutex::new((0, None));

/// Moves this process into the group, before it creates the sockets that are to be recognised. The caller holds the
/// machine's lock, so that no other node removes the group meanwhile.
pub(super) fn enter() -> io::Result<EngineGroup> {
    let unsupported = |what: &str| io::Error::new(io::ErrorKind::Unsupported, what);
    if fs::metadata("/proc/self/ns/cgroup")?.ino() != INITIAL_NAMESPACE {
        return Err(unsupported("this process is in a cgroup namespace of its own"));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let top = unified_mount(&mounts).ok_or_else(|| unsupported("the unified cgroup hierarchy (v2) is not mounted"))?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let own =
        unified_group(&groups).ok_or_else(|| unsupported("this process has no cgroup in the unified hierarchy"))?;
    let mut users = USERS.lock();
    let (folder, relative) = if own.ends_with(GROUP) {
        (top.join(own), own.to_owned())
    } else {
        let (from, folder) = (top.join(own), top.join(own).join(GROUP));
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        write_control(&folder.join("cgroup.procs"), "0")?;
        users.1 = Some(from);
        (folder, own.join(GROUP))
    };
    let level = u32::try_from(relative.components().count()).map_err(io::Error::other)?;
    users.0 += 1;
    Ok(EngineGroup { id: fs::metadata(folder)?.ino(), level })
}

/// Releases the group for one node. After the last one the process, and the helpers it has started, return to where
/// they came from, and the group is removed unless processes of others are in it.
pub(super) fn leave() {
    let mut users = USERS.lock();
    users.0 = users.0.saturating_sub(1);
    if users.0 > 0 {
        return;
    }
    let Some(from) = users.1.take() else { return };
    let group = from.join(GROUP);
    let this = std::process::id();
    for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
        if pid.parse() == Ok(this) || parent_of(pid) == Some(this) {
            // A process that has exited meanwhile needs no move.
            let _ = write_control(&from.join("cgroup.procs"), pid);
        }
    }
    // Fails while another engine is in it.
    let _ = fs::remove_dir(group);
}

fn parent_of(pid: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// Where the whole unified hierarchy is mounted.
fn unified_mount(mountinfo: &str) -> Option<&Path> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (after.starts_with("cgroup2 ") && root == "/").then(|| Path::new(point))
    })
}

/// This process's group in the unified hierarchy, relative to the top.
fn unified_group(groups: &str) -> Option<&Path> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    (!path.split('/').any(|part| part == "..")).then(|| Path::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_and_the_group_are_found_on_hybrid_and_unified_hosts() {
        let hybrid = "30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(unified_mount(hybrid), Some(Path::new("/sys/fs/cgroup/unified")));
        let part = "31 24 0:27 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(unified_mount(part), None, "levels would not be counted from the top");
        assert_eq!(unified_group("4:cpu:/x\n0::/a.slice/b.service\n"), Some(Path::new("a.slice/b.service")));
        assert_eq!(unified_group("0::/\n"), Some(Path::new("")));
        assert_eq!(unified_group("0::/../x\n"), None);
        assert_eq!(unified_group("4:cpu:/x\n"), None);
    }
}
