//! What is left of nodes on this machine and is not cleaned up by itself, for people to decide about.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Turn, net, notes, whole};
use crate::kernel::cgroup;

/// What the names of all our tables and groups begin with; eight hexadecimal digits follow.
const PREFIX: &str = "agent-sandbox-";

/// Remains of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stray {
    /// Its process died, its Pods run on and wait for its next start.
    Pods { data_dir: PathBuf },
    /// A packet filter table that no known node made.
    Table { name: String, data_dir: Option<PathBuf> },
    /// An empty control group that no known node made.
    Group { folder: PathBuf },
}

/// Everything of the kind, as root; nothing for other users, whose nodes put nothing on the machine.
pub fn strays() -> Vec<Stray> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let notes = notes();
    let known: BTreeSet<&str> = notes.iter().map(|(word, _)| word.as_str()).collect();
    let dead = notes.iter().filter(|(_, note)| note.is_of_the_dead() && !note.is_deserted());
    let mut list: Vec<_> = dead.map(|(_, note)| Stray::Pods { data_dir: note.data_dir.clone() }).collect();
    let unknown = |name: &str| word_of(name).is_some_and(|word| !known.contains(word));
    let tables = net::tables().unwrap_or_default().into_iter();
    list.extend(
        tables
            .filter(|table| unknown(&table.name) && !has_cables(&table.name))
            .map(|table| Stray::Table { name: table.name, data_dir: table.comment.map(PathBuf::from) }),
    );
    list.extend(
        groups()
            .into_iter()
            .filter(|folder| {
                folder.file_name().is_some_and(|name| unknown(&name.to_string_lossy()))
                    && whole(folder).processes().is_empty()
            })
            .map(|folder| Stray::Group { folder }),
    );
    list
}

/// Removes remains that nothing uses. Running Pods are their owner's to end.
pub fn remove_stray(stray: &Stray) -> io::Result<()> {
    let _turn = Turn::take()?;
    match stray {
        Stray::Pods { .. } => Ok(()),
        Stray::Table { name, .. } => net::delete_table(name),
        Stray::Group { folder } => cgroup::remove_tree(folder),
    }
}

/// The word of a data folder in a name of ours.
fn word_of(name: &str) -> Option<&str> {
    let word = name.strip_prefix(PREFIX)?;
    (word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(word)
}

/// Whether Pods are still connected by a table's rules: its node may be one whose notes we cannot see.
fn has_cables(table: &str) -> bool {
    let Some(word) = word_of(table) else { return true };
    let prefix = format!("asb{}", &word[..4]);
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
}

/// Folders at the top of every tree of control groups that have a name of ours.
fn groups() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let trees = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
    let entries = trees.flat_map(|tree| fs::read_dir(Path::new(tree)).into_iter().flatten().flatten());
    entries.filter(|entry| word_of(&entry.file_name().to_string_lossy()).is_some()).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_looked_at() {
        assert_eq!(word_of("agent-sandbox-0f26e452"), Some("0f26e452"));
        for other in ["agent-sandbox-mine", "agent-sandbox-0f26e452x", "filter", "agent-sandbox-"] {
            assert_eq!(word_of(other), None, "{other}");
        }
    }
}
