//! What a node has put on the host outside its folder, noted where every other node of the machine can see it: when a node
//! died without cleaning up and nobody will start it again, the next one to start cleans up for it.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::supervisor::records::{self, ProcessRecord};
use super::{cgroup, net};

/// Beside the table of id blocks; gone with the machine's uptime, as is what it tells about.
const FOLDER: &str = "/run/agent-sandbox/nodes";

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
}

impl Note {
    /// Whether nobody will ever clean up after this node.
    fn is_abandoned(&self) -> bool {
        !records::is_running(&self.process) && (self.thrown_away || !self.data_dir.exists())
    }

    /// Tells whether nothing is left. Pods that end with their node may still be about to.
    fn clean_up(&self) -> bool {
        let mut clean = true;
        for group in &self.groups {
            let plan = cgroup::CgroupPlan { unified: Some(group.clone()), ..cgroup::CgroupPlan::default() };
            let _ = plan.kill();
            clean &= cgroup::remove_tree(group).is_ok();
        }
        if let Some(table) = &self.table {
            let _ = net::delete_table(table);
        }
        if let Some(gateway) = self.gateway {
            let _ = net::loopback_address(gateway, false);
        }
        clean
    }
}

/// The note of a node that runs; removed when it gave everything back.
pub(crate) struct OwnNote(PathBuf);

impl OwnNote {
    /// Writes this node's note, named by a word of its folder's.
    pub(crate) fn write(word: &str, note: &Note) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(FOLDER)?;
        let path = Path::new(FOLDER).join(word);
        records::replace_text(&path, &serde_json::to_string(note).map_err(io::Error::other)?)?;
        Ok(Self(path))
    }

    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Cleans up after nodes that nobody will start again. Best effort: a failure concerns somebody else's remains.
pub(crate) fn sweep() {
    let Ok(entries) = fs::read_dir(FOLDER) else { return };
    for entry in entries.flatten() {
        let note = fs::read(entry.path()).ok().and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok());
        let Some(note) = note.filter(Note::is_abandoned) else { continue };
        tracing::info!(data_dir = %note.data_dir.display(), "Cleaning up after a node that died");
        if note.clean_up() {
            let _ = fs::remove_file(entry.path());
        }
    }
}
