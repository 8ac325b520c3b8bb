//! Cgroups: limits for every Pod and container, on the unified hierarchy (v2) and on hierarchies where a controller is
//! still bound to v1. Where both exist ("hybrid"), v2 is used for identity, kill and freeze, v1 for limits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

mod freezer;
mod layout;
mod usage;

pub(crate) use freezer::{FrozenGroup, thaw_leftover};
pub(crate) use layout::{CgroupLayout, Controller};
pub use usage::{ContainerUsage, PodUsage};

/// The folders of one cgroup in every hierarchy it exists in, and the values to write there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CgroupPlan {
    /// Folder in the unified hierarchy: identity, kill and freeze.
    pub(crate) unified: Option<PathBuf>,
    /// Folders in v1 hierarchies, one per controller.
    pub(crate) v1: Vec<PathBuf>,
    /// Files to write, in order, after the folders exist.
    pub(crate) settings: Vec<Setting>,
    /// File whose `oom_kill` line counts processes killed for lack of memory.
    pub(crate) oom_counter: Option<PathBuf>,
}

/// One value of one control file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) file: PathBuf,
    pub(crate) value: String,
    /// A value that the kernel may refuse without making the Pod less safe (a weight, a swap limit without swap
    /// accounting).
    pub(crate) optional: bool,
}

/// Limits with every default filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HardLimits {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cpu_millis: Option<u64>,
    pub(crate) cpu_request_millis: Option<u64>,
    pub(crate) pids: Option<u64>,
}

impl CgroupPlan {
    /// Creates the folders and writes the limits.
    pub(crate) fn create(&self) -> io::Result<()> {
        for folder in self.folders() {
            match fs::create_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        apply(&self.settings)
    }

    /// Moves the calling process into the v1 cgroups.
    pub(crate) fn enter_v1(&self) -> io::Result<()> {
        self.v1.iter().try_for_each(|folder| write_control(&folder.join("cgroup.procs"), "0"))
    }

    /// Moves the calling process into the cgroup of the unified hierarchy.
    pub(crate) fn enter_unified(&self) -> io::Result<()> {
        self.unified.as_ref().map_or(Ok(()), |folder| write_control(&folder.join("cgroup.procs"), "0"))
    }

    /// Moves the calling process into the cgroup, in every hierarchy.
    pub(crate) fn enter(&self) -> io::Result<()> {
        self.enter_unified().and_then(|()| self.enter_v1())
    }

    /// Moves another process into the cgroup.
    pub(crate) fn adopt(&self, pid: i32) -> io::Result<()> {
        self.folders().try_for_each(|folder| write_control(&folder.join("cgroup.procs"), &pid.to_string()))
    }

    /// Kills every process in the cgroup. Does not wait for their exits.
    pub(crate) fn kill(&self) -> io::Result<()> {
        if let Some(unified) = &self.unified {
            match write_control(&unified.join("cgroup.kill"), "1") {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound && !unified.exists() => return Ok(()),
                Err(_) => {}
            }
        }
        for pid in self.processes() {
            // A process that has exited meanwhile needs no signal.
            let _ = crate::kernel::sys::kill(pid, libc::SIGKILL);
        }
        Ok(())
    }

    /// Pids in this cgroup and its descendants, as far as they can be read.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        for folder in self.folders() {
            collect_processes(folder, &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Number of processes of this cgroup that were killed for lack of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.oom_counter
            .as_deref()
            .and_then(|file| fs::read_to_string(file).ok())
            .map_or(0, |text| parse_oom_kills(&text))
    }

    /// Removes the folders, deepest first. Missing ones are fine; a busy one is an error.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.folders().try_for_each(remove_tree)
    }

    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.unified.iter().chain(&self.v1).map(PathBuf::as_path)
    }
}

/// Writes values, in order.
pub(crate) fn apply(settings: &[Setting]) -> io::Result<()> {
    for setting in settings {
        match write_control(&setting.file, &setting.value) {
            Err(error) if !setting.optional => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The `oom_kill` count of `memory.events` (v2) or `memory.oom_control` (v1).
fn parse_oom_kills(text: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill "))
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

fn collect_processes(folder: &Path, pids: &mut Vec<i32>) {
    if let Ok(text) = fs::read_to_string(folder.join("cgroup.procs")) {
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    }
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_processes(&entry.path(), pids);
        }
    }
}

/// Removes a cgroup's folder and those below it (control files vanish with their folder).
pub(crate) fn remove_tree(folder: &Path) -> io::Result<()> {
    // Most cgroups have no children, and listing the control files takes longer than removing the cgroup.
    match fs::remove_dir(folder) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => {}
    }
    match fs::read_dir(folder) {
        Ok(entries) => {
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    remove_tree(&entry.path())?;
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes the whole value with one write, and never creates the file.
pub(crate) fn write_control(file: &Path, value: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_oom_kills_in_both_formats() {
        assert_eq!(parse_oom_kills("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), 2);
        assert_eq!(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"), 1);
        assert_eq!(parse_oom_kills(""), 0);
    }
}
