//! The host's `ip_forward` setting: saved and switched on while any node of the machine needs it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::MachineLock;

const SETTING: &str = "/proc/sys/net/ipv4/ip_forward";
/// One file for each node that needs forwarding, and one with the value from before the first of them.
const USERS: &str = "/run/agent-sandbox/forwarding";
const BEFORE: &str = "/run/agent-sandbox/ip-forward";
/// The names of the interfaces at that moment, one per line.
const INTERFACES: &str = "/run/agent-sandbox/ip-forward-interfaces";

/// Switches forwarding on for a node. A host that already forwards is left as it is. Otherwise returns the interfaces
/// that the host had when the first node switched it on: between them, it should not begin to forward.
pub(crate) fn enable_forwarding(_lock: &MachineLock, node_id: &str) -> io::Result<Option<Vec<String>>> {
    let present = fs::read_to_string(SETTING)?;
    let switched_by_us = Path::new(BEFORE).exists();
    if present.trim() == "1" && !switched_by_us {
        return Ok(None);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(USERS)?;
    if !switched_by_us {
        fs::write(INTERFACES, foreign_interfaces()?.join("\n"))?;
        fs::write(BEFORE, present)?;
    }
    fs::write(Path::new(USERS).join(node_id), "")?;
    fs::write(SETTING, "1")?;
    Ok(recorded_interfaces())
}

/// The interfaces that were recorded when a node of this machine switched forwarding on; `None` if none did.
pub(crate) fn recorded_interfaces() -> Option<Vec<String>> {
    Path::new(BEFORE).exists().then_some(())?;
    let text = fs::read_to_string(INTERFACES).ok()?;
    Some(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// All interfaces but loopback and those of Pods.
fn foreign_interfaces() -> io::Result<Vec<String>> {
    let names = fs::read_dir("/sys/class/net")?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name != "lo" && !name.starts_with("asb") && name != "bonding_masters").collect())
}

/// Restores the host's own value when the last node that needed forwarding releases it.
pub(crate) fn release_forwarding(_lock: &MachineLock, node_id: &str) {
    let _ = fs::remove_file(Path::new(USERS).join(node_id));
    let others = fs::read_dir(USERS).is_ok_and(|mut entries| entries.next().is_some());
    // The saved value is only removed once it is restored.
    if !others
        && let Ok(before) = fs::read_to_string(BEFORE)
        && fs::write(SETTING, before).is_ok()
    {
        let _ = fs::remove_file(BEFORE);
        let _ = fs::remove_file(INTERFACES);
    }
}
