//! The table of id blocks shared by all nodes of one machine: which data folder has leased which block. It lives until
//! the next reboot, and is guarded by a file lock that the kernel releases when its holder dies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};

use crate::kernel::storage::atomic_file;
use crate::kernel::supervisor::plan::BLOCK_SIZE;

/// Folder of the table for nodes that run as root.
const FOLDER: &str = "/run/agent-sandbox";

/// The table, as used by one node.
pub(crate) struct SharedTable {
    folder: PathBuf,
    data_dir: String,
    /// Number of ids in each block.
    size: u32,
}

type Leases = BTreeMap<u32, String>;

impl SharedTable {
    /// The table of all nodes that run as root.
    pub(crate) fn of_machine(data_dir: &Path) -> Self {
        Self::at(Path::new(FOLDER), data_dir, BLOCK_SIZE)
    }

    /// The table of all nodes of an unprivileged caller. On a host without a per-user folder that lives until the next
    /// reboot, each node has a table of its own.
    pub(crate) fn of_caller(data_dir: &Path, size: u32) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let candidates = [format!("/run/user/{uid}/agent-sandbox"), format!("/dev/shm/agent-sandbox-{uid}")];
        let folder = candidates.iter().map(Path::new).find(|folder| is_own(folder, uid));
        Self::at(folder.unwrap_or(data_dir), data_dir, size)
    }

    pub(crate) fn at(folder: &Path, data_dir: &Path, size: u32) -> Self {
        let data_dir = fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        Self { folder: folder.to_owned(), data_dir: data_dir.to_string_lossy().into_owned(), size }
    }

    /// A number derived from this node's data folder.
    pub(super) fn node_number(&self) -> u32 {
        let hash = Sha256::digest(self.data_dir.as_bytes());
        u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
    }

    /// Leases blocks that this node's owners already have. A block that another node has leased is an error that needs
    /// an administrator.
    pub(super) fn claim(&self, blocks: &[u32]) -> io::Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.update(|leases| {
            for block in blocks {
                if let Some(other) = self.lease_holder(leases, *block).filter(|holder| **holder != self.data_dir) {
                    return Err(io::Error::other(format!(
                        "the user ids from {block} on are in use by the node of {other}; stop it and remove its folder, or this one's"
                    )));
                }
                leases.insert(*block, self.data_dir.clone());
            }
            Ok(())
        })
    }

    /// Leases up to `most` free blocks of the candidates, in their order.
    pub(super) fn lease(&self, candidates: impl Iterator<Item = u32>, most: usize) -> io::Result<Vec<u32>> {
        self.update(|leases| {
            let free: Vec<_> =
                candidates.filter(|block| self.lease_holder(leases, *block).is_none()).take(most).collect();
            leases.extend(free.iter().map(|block| (*block, self.data_dir.clone())));
            Ok(free)
        })
    }

    /// Returns every block of this node but these.
    pub(super) fn keep_only(&self, blocks: &BTreeSet<u32>) -> io::Result<()> {
        self.update(|leases| {
            leases.retain(|block, holder| *holder != self.data_dir || blocks.contains(block));
            Ok(())
        })
    }

    /// The data folder that has leased any id of the block.
    fn lease_holder<'h>(&self, leases: &'h Leases, first: u32) -> Option<&'h String> {
        let from = first.saturating_sub(self.size - 1);
        let to = first.saturating_add(self.size - 1);
        leases.range(from..=to).next().map(|(_, holder)| holder)
    }

    fn update<T>(&self, work: impl FnOnce(&mut Leases) -> io::Result<T>) -> io::Result<T> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let lock = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(self.folder.join("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        let file = self.folder.join("id-blocks.json");
        let mut leases: Leases = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Leases::new(),
            Err(error) => return Err(error),
        };
        // A data folder that no longer exists has no files that belong to its ids.
        leases.retain(|_, holder| Path::new(holder).is_dir());
        let result = work(&mut leases)?;
        atomic_file::replace(&file, &leases)?;
        Ok(result)
    }
}

/// Creates a folder that no other user can write to. Returns false if it belongs to another user or cannot be created.
fn is_own(folder: &Path, uid: u32) -> bool {
    let made = fs::DirBuilder::new().mode(0o700).create(folder);
    if made.is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
        return false;
    }
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}
