//! What survives on disk: who supervises the Pod, and how each container stands. Every file is replaced by rename, so a
//! reader sees a whole record or the one before.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::runtime::{ContainerState, PodSandbox, PodSandboxSpec};

/// Identifies a process beyond doubt: a pid alone is reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    boot_id: String,
    pid: u32,
    start_time: u64,
}

impl ProcessRecord {
    /// This very process.
    pub(crate) fn own() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self { boot_id: boot_id()?.to_owned(), pid, start_time: start_time(pid)? })
    }
}

/// Who supervises a Pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SupervisorRecord {
    #[serde(flatten)]
    pub(crate) process: ProcessRecord,
    pub(crate) sandbox: PodSandbox,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) owner: String,
}

const SUPERVISOR: &str = "supervisor.json";
const STARTED: &str = "started";
const ENDED: &str = "ended";
/// Where supervisors of earlier versions keep how their containers stand; now that is beside everything else.
const CONTAINERS: &str = "containers";

pub(crate) fn write_supervisor(dir: &Path, sandbox: &PodSandbox, spec: &PodSandboxSpec) -> io::Result<()> {
    let record = SupervisorRecord {
        process: ProcessRecord::own()?,
        sandbox: sandbox.clone(),
        namespace: spec.namespace.clone(),
        name: spec.name.clone(),
        owner: spec.owner.clone(),
    };
    replace(&dir.join(SUPERVISOR), &record)
}

pub(crate) fn read_supervisor(dir: &Path) -> io::Result<SupervisorRecord> {
    read(&dir.join(SUPERVISOR))
}

/// Notes how a container stands. Each attempt has one file for its start and one for its end: replacing a file that was
/// written a moment ago makes some file systems write it out first.
pub(crate) fn write_container(dir: &Path, state: &ContainerState) -> io::Result<()> {
    replace(&container_path(dir, state, state.attempt, state.exit.is_some()), state)?;
    if let Some(before) = state.attempt.checked_sub(1).filter(|_| state.exit.is_none()) {
        for ended in [false, true] {
            // The new record tells what mattered of it.
            let _ = fs::remove_file(container_path(dir, state, before, ended));
        }
    }
    Ok(())
}

/// All containers of a Pod, in no particular order. Files that cannot be read are left out.
pub(crate) fn read_containers(dir: &Path) -> Vec<ContainerState> {
    let mut latest: BTreeMap<String, ContainerState> = BTreeMap::new();
    let records = [dir.to_owned(), dir.join(CONTAINERS)]
        .into_iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flat_map(Iterator::flatten)
        .filter(|entry| {
            let name = entry.file_name();
            [STARTED, ENDED].iter().any(|moment| name.to_string_lossy().ends_with(&format!(".{moment}.json")))
        })
        .filter_map(|entry| read::<ContainerState>(&entry.path()).ok());
    for state in records {
        let rank = |state: &ContainerState| (state.attempt, state.exit.is_some());
        if latest.get(&state.name).is_none_or(|known| rank(known) < rank(&state)) {
            latest.insert(state.name.clone(), state);
        }
    }
    latest.into_values().collect()
}

fn container_path(dir: &Path, state: &ContainerState, attempt: u32, ended: bool) -> PathBuf {
    let moment = if ended { ENDED } else { STARTED };
    dir.join(format!("{}.{attempt}.{moment}.json", state.name))
}

/// Whether the process of a record is still that process.
pub(crate) fn is_running(record: &ProcessRecord) -> bool {
    boot_id().is_ok_and(|boot| boot == record.boot_id)
        && start_time(record.pid).is_ok_and(|start| start == record.start_time)
}

/// Stays the same for as long as any process lives; what is forked from us knows what we know.
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

/// Field 22; the name in field 2 may hold spaces and brackets, so counting starts after its last bracket. A dead process
/// that nobody reaped does not count as started.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Replaces a record, whole or not at all.
pub(crate) fn replace<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    let (temporary, _) = write_beside(path, record)?;
    fs::rename(temporary, path)
}

/// Replaces a file of plain text, whole or not at all. A half-written one has a name that begins with a dot.
pub(crate) fn replace_text(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}"));
    fs::write(&temporary, text)?;
    fs::rename(temporary, path)
}

/// Writes a file and its name through to the disk.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()?;
    match path.parent() {
        Some(folder) => fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// As [`replace`], and still whole after a loss of power: for records that outlive the machine's uptime.
pub(crate) fn replace_durably<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    let (temporary, file) = write_beside(path, record)?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    sync(path)
}

fn write_beside<T: Serialize>(path: &Path, record: &T) -> io::Result<(PathBuf, fs::File)> {
    let temporary = path.with_extension("tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(record).map_err(io::Error::other)?)?;
    Ok((temporary, file))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<T> {
    serde_json::from_slice(&fs::read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Exit;

    #[test]
    fn start_time_survives_strange_process_names() {
        let fields =
            (3..=22).map(|n| if n == 3 { "S".to_owned() } else { n.to_string() }).collect::<Vec<_>>().join(" ");
        assert_eq!(parse_start_time(&format!("7 (a) b (c) {fields} 23 24")), Some(22));
        assert_eq!(parse_start_time(&format!("7 (x) {}", fields.replacen('S', "Z", 1))), None);
        assert_eq!(parse_start_time("nonsense"), None);
    }

    #[test]
    fn the_latest_attempt_and_its_end_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let exit = |code| Exit { code, signal: None, oom_killed: false, finished_at: jiff::Timestamp::UNIX_EPOCH };
        let state = |attempt, exit| ContainerState {
            name: "c".into(),
            attempt,
            id: String::new(),
            pid: 1,
            started_at: jiff::Timestamp::UNIX_EPOCH,
            exit,
            port_open: false,
            previous: None,
        };
        let latest =
            || read_containers(dir.path()).into_iter().map(|state| (state.attempt, state.exit)).collect::<Vec<_>>();
        write_container(dir.path(), &state(9, None)).unwrap();
        assert_eq!(latest(), [(9, None)]);
        write_container(dir.path(), &state(9, Some(exit(3)))).unwrap();
        assert_eq!(latest(), [(9, Some(exit(3)))]);
        write_container(dir.path(), &state(10, None)).unwrap();
        assert_eq!(latest(), [(10, None)]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let earlier = dir.path().join(CONTAINERS);
        fs::create_dir(&earlier).unwrap();
        fs::rename(dir.path().join("c.10.started.json"), earlier.join("c.10.started.json")).unwrap();
        assert_eq!(latest(), [(10, None)], "of an earlier version");
    }

    #[test]
    fn own_process_is_alive_and_a_reused_pid_is_not() {
        let record = ProcessRecord::own().unwrap();
        assert!(is_running(&record));
        assert!(!is_running(&ProcessRecord { start_time: record.start_time + 1, ..record.clone() }));
        assert!(!is_running(&ProcessRecord { boot_id: "another boot".into(), ..record }));
    }
}
