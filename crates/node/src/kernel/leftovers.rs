//! What a node has put on the host outside its folder, noted where every other node of the machine can see it: when a node
//! died without cleaning up and nothing of it runs any more, the next one to start cleans up for it.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::supervisor::records::{self, ProcessRecord};
use super::{cgroup, net};

mod forwarding;
mod strays;

pub(crate) use forwarding::{needs_forwarding, no_longer_forwards};
pub use strays::{Stray, remove_stray, strays};

/// Gone with the machine's uptime, as is what it tells about.
const FOLDER: &str = "/run/agent-sandbox";
const NOTES: &str = "/run/agent-sandbox/nodes";

/// Held while a node puts something on the machine or clears it away, so that nobody clears away what is just being made.
pub(crate) struct Turn(#[expect(dead_code, reason = "the lock lasts as long as the file is open")] fs::File);

impl Turn {
    /// Waits for whoever has it, which takes milliseconds; a process that dies gives it up.
    pub(crate) fn take() -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(NOTES)?;
        let path = Path::new(FOLDER).join("nodes.lock");
        let lock = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        Ok(Self(lock))
    }
}

/// Namespaces in which a note is true: elsewhere its process ids and its table's name mean something else, or nothing.
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

/// One node's note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) data_dir: PathBuf,
    pub(crate) process: ProcessRecord,
    /// Its Pods end with it: what is left of a dead one is nobody's.
    pub(crate) thrown_away: bool,
    pub(crate) table: Option<String>,
    pub(crate) gateway: Option<Ipv4Addr>,
    /// Folders of the group above its Pods.
    pub(crate) groups: Vec<PathBuf>,
    /// Missing in notes of versions that did not tell.
    pub(crate) namespaces: Option<Namespaces>,
}

impl Note {
    /// Whether its node is dead, as far as can be told from here.
    fn is_of_the_dead(&self) -> bool {
        let here = self.namespaces.is_none_or(|theirs| Namespaces::own().is_ok_and(|ours| ours == theirs));
        here && !records::is_running(&self.process)
    }

    /// Whether what it tells about serves nobody: a node that starts again in the same folder makes it anew.
    fn is_abandoned(&self) -> bool {
        self.is_of_the_dead() && (self.thrown_away || !self.data_dir.exists() || self.is_deserted())
    }

    /// Whether no process of any Pod is left.
    fn is_deserted(&self) -> bool {
        !self.groups.is_empty() && self.groups.iter().all(|group| whole(group).processes().is_empty())
    }

    /// Tells whether nothing is left. Pods that end with their node may still be about to.
    fn clean_up(&self, turn: &Turn, word: &str) -> bool {
        let mut clean = true;
        for group in &self.groups {
            let _ = whole(group).kill();
            clean &= cgroup::remove_tree(group).is_ok();
        }
        if let Some(table) = &self.table {
            clean &= net::delete_table(table).is_ok();
        }
        if let Some(gateway) = self.gateway {
            clean &= net::loopback_address(gateway, false).is_ok();
        }
        no_longer_forwards(turn, word);
        clean
    }
}

/// A group as the folder it is in one tree.
fn whole(group: &Path) -> cgroup::CgroupPlan {
    cgroup::CgroupPlan { unified: Some(group.to_owned()), ..cgroup::CgroupPlan::default() }
}

/// The note of a node that runs; removed when it gave everything back.
pub(crate) struct OwnNote(PathBuf);

impl OwnNote {
    /// Writes this node's note, named by a word of its folder's.
    pub(crate) fn write(_turn: &Turn, word: &str, note: &Note) -> io::Result<Self> {
        let path = Path::new(NOTES).join(word);
        records::replace_text(&path, &serde_json::to_string(note).map_err(io::Error::other)?)?;
        Ok(Self(path))
    }

    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Cleans up after nodes that left nothing running. Best effort: a failure concerns somebody else's remains.
pub(crate) fn sweep(turn: &Turn) {
    for (word, note) in notes().into_iter().filter(|(_, note)| note.is_abandoned()) {
        tracing::info!(data_dir = %note.data_dir.display(), "Cleaning up after a node that died");
        if note.clean_up(turn, &word) {
            let _ = fs::remove_file(Path::new(NOTES).join(word));
        }
    }
}

/// All notes of this machine that can be read, with the words they are named by.
fn notes() -> Vec<(String, Note)> {
    let entries = fs::read_dir(NOTES).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    named.filter_map(|(word, path)| Some((word, serde_json::from_slice(&fs::read(path).ok()?).ok()?))).collect()
}
