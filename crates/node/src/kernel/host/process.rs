//! Identifies a process across restarts of the node: its pid, its start time and the boot it belongs to.

use std::fs;
use std::io;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// Identifies a process unambiguously: pids are reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    boot_id: String,
    pid: u32,
    start_time: u64,
}

impl ProcessRecord {
    /// The current process.
    pub(crate) fn own() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self { boot_id: boot_id()?.to_owned(), pid, start_time: start_time(pid)? })
    }
}

/// Whether the recorded process is still running.
pub(crate) fn is_running(record: &ProcessRecord) -> bool {
    boot_id().is_ok_and(|boot| boot == record.boot_id)
        && start_time(record.pid).is_ok_and(|start| start == record.start_time)
}

/// The kernel's boot id. Read once: it cannot change during a process's life, and forked processes inherit the value.
pub(crate) fn boot_id() -> io::Result<&'static str> {
    static KNOWN: OnceLock<String> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known);
    }
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(KNOWN.get_or_init(|| read.trim().to_owned()))
}

fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start_time(&stat).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Field 22 of `/proc/<pid>/stat`. The name in field 2 may contain spaces and brackets, so counting starts after its
/// last bracket. `None` for a zombie.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_survives_strange_process_names() {
        let fields =
            (3..=22).map(|n| if n == 3 { "S".to_owned() } else { n.to_string() }).collect::<Vec<_>>().join(" ");
        assert_eq!(parse_start_time(&format!("7 (a) b (c) {fields} 23 24")), Some(22));
        assert_eq!(parse_start_time(&format!("7 (x) {}", fields.replacen('S', "Z", 1))), None);
        assert_eq!(parse_start_time("nonsense"), None);
    }

    #[test]
    fn own_process_is_alive_and_a_reused_pid_is_not() {
        let record = ProcessRecord::own().unwrap();
        assert!(is_running(&record));
        assert!(!is_running(&ProcessRecord { start_time: record.start_time + 1, ..record.clone() }));
        assert!(!is_running(&ProcessRecord { boot_id: "another boot".into(), ..record }));
    }
}
