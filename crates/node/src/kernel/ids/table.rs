//! The table all nodes of one machine share: which data folder holds which block of ids. It lives for the machine's uptime,
//! guarded by a lock that the kernel gives up for a process that dies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};

use super::super::supervisor::records;
use crate::kernel::plan::BLOCK_SIZE;

/// Where it is for nodes that run as root.
const FOLDER: &str = "/run/agent-sandbox";

/// One node's view of the table.
pub(crate) struct SharedTable {
    folder: PathBuf,
    data_dir: String,
    /// Ids of each block.
    size: u32,
}

type Holders = BTreeMap<u32, String>;

impl SharedTable {
    /// The table of all nodes that run as root.
    pub(crate) fn of_machine(data_dir: &Path) -> Self {
        Self::at(Path::new(FOLDER), data_dir, BLOCK_SIZE)
    }

    /// The table of all nodes of the caller, who is not root; where nothing lives as long as the machine's uptime, each has
    /// its own.
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

    /// A number of this node's own.
    pub(super) fn number(&self) -> u32 {
        let hash = Sha256::digest(self.data_dir.as_bytes());
        u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
    }

    /// Enters blocks that this node's owners have. One that another node took is a mistake nobody here can mend.
    pub(super) fn claim(&self, blocks: &[u32]) -> io::Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.change(|holders| {
            for block in blocks {
                if let Some(other) = self.holder_of(holders, *block).filter(|holder| **holder != self.data_dir) {
                    return Err(io::Error::other(format!(
                        "the user ids from {block} on are in use by the node of {other}; stop it and remove its folder, or this one's"
                    )));
                }
                holders.insert(*block, self.data_dir.clone());
            }
            Ok(())
        })
    }

    /// Takes up to `most` free blocks of the candidates, in their order.
    pub(super) fn lease(&self, candidates: impl Iterator<Item = u32>, most: usize) -> io::Result<Vec<u32>> {
        self.change(|holders| {
            let free: Vec<_> =
                candidates.filter(|block| self.holder_of(holders, *block).is_none()).take(most).collect();
            holders.extend(free.iter().map(|block| (*block, self.data_dir.clone())));
            Ok(free)
        })
    }

    /// Gives up every block of this node but these.
    pub(super) fn keep_only(&self, blocks: &BTreeSet<u32>) -> io::Result<()> {
        self.change(|holders| {
            holders.retain(|block, holder| *holder != self.data_dir || blocks.contains(block));
            Ok(())
        })
    }

    /// Who holds any id of the block.
    fn holder_of<'h>(&self, holders: &'h Holders, first: u32) -> Option<&'h String> {
        let from = first.saturating_sub(self.size - 1);
        let to = first.saturating_add(self.size - 1);
        holders.range(from..=to).next().map(|(_, holder)| holder)
    }

    fn change<T>(&self, work: impl FnOnce(&mut Holders) -> io::Result<T>) -> io::Result<T> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let lock = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(self.folder.join("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        let file = self.folder.join("id-blocks.json");
        let mut holders: Holders = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Holders::new(),
            Err(error) => return Err(error),
        };
        // A folder that is gone has no files that anybody's ids could own.
        holders.retain(|_, holder| Path::new(holder).is_dir());
        let result = work(&mut holders)?;
        records::replace(&file, &holders)?;
        Ok(result)
    }
}

/// Makes a folder that nobody else can write to; false when somebody else has it, or it cannot be made.
fn is_own(folder: &Path, uid: u32) -> bool {
    let made = fs::DirBuilder::new().mode(0o700).create(folder);
    if made.is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
        return false;
    }
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}
