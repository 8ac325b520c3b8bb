//! Records of a Pod on disk: its supervisor, and the state of each container. Every file is replaced by rename, so a
//! reader sees a whole record or the previous one.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::kernel::host::process::ProcessRecord;
use crate::kernel::storage::atomic_file::{read, replace};
use crate::kernel::storage::termination_message;
use crate::runtime::{ContainerState, PodSandbox, PodSandboxSpec};

/// The supervisor of a Pod.
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
/// Folder in which supervisors of earlier versions keep container records; now they are in the Pod's folder.
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

/// Writes the state of a container. Each attempt has one file for its start and one for its end: replacing a file that
/// was written a moment ago makes some file systems write it out first.
pub(crate) fn write_container(dir: &Path, state: &ContainerState) -> io::Result<()> {
    replace(&container_path(dir, state, state.attempt, state.exit.is_some()), state)?;
    if let Some(before) = state.attempt.checked_sub(1).filter(|_| state.exit.is_none()) {
        for ended in [false, true] {
            // The new record contains what is needed of the previous one.
            let _ = fs::remove_file(container_path(dir, state, before, ended));
        }
    }
    Ok(())
}

/// Keeps the end of a container's termination message, if it has one.
pub(crate) fn write_message(dir: &Path, container: &str, message: &fs::File) -> io::Result<()> {
    let bytes = termination_message::end_of(message, termination_message::MAX_BYTES)?;
    if bytes.is_empty() { Ok(()) } else { fs::write(message_path(dir, container), bytes) }
}

pub(crate) fn read_message(dir: &Path, container: &str) -> io::Result<Vec<u8>> {
    fs::read(message_path(dir, container))
}

/// Before the next attempt.
pub(crate) fn remove_message(dir: &Path, container: &str) {
    // Usually there is none.
    let _ = fs::remove_file(message_path(dir, container));
}

fn message_path(dir: &Path, container: &str) -> PathBuf {
    dir.join(format!("{container}.message"))
}

/// The states of all containers of a Pod, in no particular order. Files that cannot be read are left out.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Exit;

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
}
