//! The host's own setting of packet forwarding, kept while any node of the machine needs it switched on.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::Turn;

const SETTING: &str = "/proc/sys/net/ipv4/ip_forward";
/// A file for each node that needs forwarding, and one with the value from before the first of them.
const USERS: &str = "/run/agent-sandbox/forwarding";
const BEFORE: &str = "/run/agent-sandbox/ip-forward";

/// Switches forwarding on for a node. A host that forwards by itself goes on doing so.
pub(crate) fn needs_forwarding(_turn: &Turn, word: &str) -> io::Result<()> {
    let present = fs::read_to_string(SETTING)?;
    let switched_by_us = Path::new(BEFORE).exists();
    if present.trim() == "1" && !switched_by_us {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(USERS)?;
    if !switched_by_us {
        fs::write(BEFORE, present)?;
    }
    fs::write(Path::new(USERS).join(word), "")?;
    fs::write(SETTING, "1")
}

/// Gives the host its own setting back with the last node that needed another.
pub(crate) fn no_longer_forwards(_turn: &Turn, word: &str) {
    let _ = fs::remove_file(Path::new(USERS).join(word));
    let others = fs::read_dir(USERS).is_ok_and(|mut entries| entries.next().is_some());
    // The record is only removed once the value is back.
    if !others
        && let Ok(before) = fs::read_to_string(BEFORE)
        && fs::write(SETTING, before).is_ok()
    {
        let _ = fs::remove_file(BEFORE);
    }
}
