//! The registry of nodes on this machine: each node records what it has created on the host outside its data folder.
//! When a node died without cleaning up and none of its processes is left, the next node to start cleans up for it.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::kernel::host::cgroup;
use crate::kernel::host::process::{self, ProcessRecord};
use crate::kernel::net;
use crate::kernel::storage::atomic_file;

mod forwarding;
mod leftovers;

pub(crate) use forwarding::{enable_forwarding, recorded_interfaces, release_forwarding};
pub use leftovers::{Leftover, leftovers, remove_leftover};

/// Both are on a file system that is empty after a reboot, as are the resources they describe.
const FOLDER: &str = "/run/agent-sandbox";
const RECORDS: &str = "/run/agent-sandbox/nodes";

/// Prefix of the names of all our nftables tables and cgroups; the node's id follows.
const NAME_PREFIX: &str = "agent-sandbox-";

/// Name of a node's nftables table and of its cgroup.
pub(crate) fn resource_name(data_dir: &Path) -> String {
    format!("{NAME_PREFIX}{}", node_id(data_dir))
}

/// The id of a node, derived from its data folder: eight hexadecimal digits.
pub(crate) fn node_id(data_dir: &Path) -> String {
    format!("{:08x}", node_number(data_dir))
}

/// The node's id as a number.
pub(crate) fn node_number(data_dir: &Path) -> u32 {
    let hash = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// Machine-wide lock, held while a node creates or removes resources on the host, so that no node removes what another
/// is just creating.
pub(crate) struct MachineLock(#[expect(dead_code, reason = "the lock lasts as long as the file is open")] fs::File);

impl MachineLock {
    /// Waits for the current holder, which takes milliseconds; the kernel releases the lock of a process that dies.
    pub(crate) fn acquire() -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(RECORDS)?;
        let path = Path::new(FOLDER).join("nodes.lock");
        let lock = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(Self(lock))
    }
}

/// The namespaces in which a record is valid: in others its pids and its table's name mean something else, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespaces {
    network: u64,
    processes: u64,
}

impl Namespaces {
    pub(crate) fn own() -> io::Result<Self> {
        let inode = |kind: &str| fs::metadata(format!("/proc/self/ns/{kind}")).map(|metadata| metadata.ino());
        Ok(Self { network: inode("net")?, processes: inode("pid")? })
    }
}

/// The record of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) data_dir: PathBuf,
    pub(crate) process: ProcessRecord,
    /// The node's Pods end with it: what is left of it after its death can be removed.
    #[serde(rename = "thrown_away")]
    pub(crate) ephemeral: bool,
    pub(crate) table: Option<String>,
    pub(crate) gateway: Option<Ipv4Addr>,
    /// Folders of the cgroup above the node's Pods.
    pub(crate) groups: Vec<PathBuf>,
    /// Missing in records of earlier versions.
    pub(crate) namespaces: Option<Namespaces>,
}

impl NodeRecord {
    /// Whether the node's process is dead, as far as it can be told from these namespaces.
    fn is_node_dead(&self) -> bool {
        let here = self.namespaces.is_none_or(|theirs| Namespaces::own().is_ok_and(|ours| ours == theirs));
        here && !process::is_running(&self.process)
    }

    /// Whether the node's resources can be removed: a node that starts again in the same folder creates them anew.
    fn is_abandoned(&self) -> bool {
        self.is_node_dead() && (self.ephemeral || !self.data_dir.exists() || self.has_no_processes())
    }

    /// Whether no process of any of the node's Pods is left.
    fn has_no_processes(&self) -> bool {
        !self.groups.is_empty() && self.groups.iter().all(|group| cgroup_at(group).processes().is_empty())
    }

    /// Removes the node's resources. Returns whether nothing is left; Pods that end with their node may still be
    /// exiting.
    fn clean_up(&self, lock: &MachineLock, node_id: &str) -> bool {
        let mut clean = true;
        for group in &self.groups {
            let _ = cgroup_at(group).kill();
            clean &= cgroup::remove_tree(group).is_ok();
        }
        if let Some(table) = &self.table {
            clean &= net::delete_table(table).is_ok();
        }
        if let Some(gateway) = self.gateway {
            clean &= net::loopback_address(gateway, false).is_ok();
        }
        release_forwarding(lock, node_id);
        clean
    }
}

/// A cgroup given by its folder in one hierarchy.
fn cgroup_at(group: &Path) -> cgroup::CgroupPlan {
    cgroup::CgroupPlan { unified: Some(group.to_owned()), ..cgroup::CgroupPlan::default() }
}

/// The record of this node; removed once the node has removed everything it describes.
pub(crate) struct RegisteredNode(PathBuf);

impl RegisteredNode {
    /// Writes this node's record; its file is named by the node's id.
    pub(crate) fn write(_lock: &MachineLock, node_id: &str, record: &NodeRecord) -> io::Result<Self> {
        let path = Path::new(RECORDS).join(node_id);
        atomic_file::replace_text(&path, &serde_json::to_string(record).map_err(io::Error::other)?)?;
        Ok(Self(path))
    }

    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Cleans up after dead nodes that left nothing running. Best effort: a failure concerns resources of another node
/// only.
pub(crate) fn clean_up_dead_nodes(lock: &MachineLock) {
    for (node_id, record) in node_records().into_iter().filter(|(_, record)| record.is_abandoned()) {
        tracing::info!(data_dir = %record.data_dir.display(), "Cleaning up after a node that died");
        if record.clean_up(lock, &node_id) {
            let _ = fs::remove_file(Path::new(RECORDS).join(node_id));
        }
    }
}

/// All readable records of this machine, by node id.
fn node_records() -> Vec<(String, NodeRecord)> {
    let entries = fs::read_dir(RECORDS).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    named.filter_map(|(node_id, path)| Some((node_id, serde_json::from_slice(&fs::read(path).ok()?).ok()?))).collect()
}
