//! What nodes have left on this machine that is not cleaned up automatically, for `doctor`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{MachineLock, NAME_PREFIX, cgroup_at, net, node_records};
use crate::kernel::host::cgroup;

/// Something that a node has left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// The node's process died; its Pods still run and wait for its next start.
    Pods { data_dir: PathBuf },
    /// An nftables table that no registered node made.
    Table { name: String, data_dir: Option<PathBuf> },
    /// An empty cgroup that no registered node made.
    Group { folder: PathBuf },
}

/// All leftovers, as root. For other users the list is empty: their nodes create nothing on the host.
pub fn leftovers() -> Vec<Leftover> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let records = node_records();
    let known: BTreeSet<&str> = records.iter().map(|(node_id, _)| node_id.as_str()).collect();
    let dead = records.iter().filter(|(_, record)| record.is_node_dead() && !record.has_no_processes());
    let mut list: Vec<_> = dead.map(|(_, record)| Leftover::Pods { data_dir: record.data_dir.clone() }).collect();
    let unknown = |name: &str| node_id_in(name).is_some_and(|node_id| !known.contains(node_id));
    let tables = net::tables().unwrap_or_default().into_iter();
    list.extend(
        tables
            .filter(|table| unknown(&table.name) && !has_veths(&table.name))
            .map(|table| Leftover::Table { name: table.name, data_dir: table.comment.map(PathBuf::from) }),
    );
    list.extend(
        cgroups()
            .into_iter()
            .filter(|folder| {
                folder.file_name().is_some_and(|name| unknown(&name.to_string_lossy()))
                    && cgroup_at(folder).processes().is_empty()
            })
            .map(|folder| Leftover::Group { folder }),
    );
    list
}

/// Removes a leftover that nothing uses. Running Pods are not removed here.
pub fn remove_leftover(leftover: &Leftover) -> io::Result<()> {
    let _lock = MachineLock::acquire()?;
    match leftover {
        Leftover::Pods { .. } => Ok(()),
        Leftover::Table { name, .. } => net::delete_table(name),
        Leftover::Group { folder } => cgroup::remove_tree(folder),
    }
}

/// The node id in the name of a table or cgroup of ours.
fn node_id_in(name: &str) -> Option<&str> {
    let node_id = name.strip_prefix(NAME_PREFIX)?;
    (node_id.len() == 8 && node_id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(node_id)
}

/// Whether veths of the table's node still exist: its node may be one whose record is not visible here.
fn has_veths(table: &str) -> bool {
    let Some(node_id) = node_id_in(table) else { return true };
    let prefix = format!("asb{}", &node_id[..4]);
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
}

/// Folders with a name of ours at the top of every cgroup hierarchy.
fn cgroups() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let trees = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
    let entries = trees.flat_map(|tree| fs::read_dir(Path::new(tree)).into_iter().flatten().flatten());
    entries
        .filter(|entry| node_id_in(&entry.file_name().to_string_lossy()).is_some())
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_looked_at() {
        assert_eq!(node_id_in("agent-sandbox-0f26e452"), Some("0f26e452"));
        for other in ["agent-sandbox-mine", "agent-sandbox-0f26e452x", "filter", "agent-sandbox-"] {
            assert_eq!(node_id_in(other), None, "{other}");
        }
    }
}
