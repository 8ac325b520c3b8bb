//! Removing and measuring files that sandboxes have written. Root can do both; an ordinary user whose sandboxes have
//! subordinate ids owns neither the files nor the folders, and starts a helper in a user namespace that maps those ids.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::tree::{self, Usage};
use crate::kernel::config::HelperProgram;
use crate::kernel::host::ids::Subordinates;

/// `argv[0]` of the helper.
const HELPER_NAME: &str = "agent-sandbox-hands";

/// How this node gets at the files of sandboxes.
#[derive(Debug, Clone)]
pub(crate) enum FileAccess {
    /// In this process.
    Direct,
    /// Through a helper that has all of the caller's subordinate ids.
    Mapped { helper: HelperProgram, subordinates: Subordinates },
}

/// The helper's input, as one JSON document.
#[derive(Serialize, Deserialize)]
struct Job {
    subordinates: Subordinates,
    work: Work,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Work {
    /// Nothing: tests whether the ids can be mapped at all.
    Try,
    Remove(PathBuf),
    Measure(PathBuf),
}

/// The helper's output: bytes and inodes, or the reason of a failure.
type HelperOutput = Result<(u64, u64), String>;

impl FileAccess {
    /// Access through the caller's subordinate ids, after one test whether they can be mapped; otherwise the reason why
    /// not.
    pub(crate) fn mapped(helper: &HelperProgram) -> Result<(Self, Subordinates), String> {
        let subordinates = Subordinates::of_caller()?;
        let access = Self::Mapped { helper: helper.clone(), subordinates: subordinates.clone() };
        access.run_helper(Work::Try).map_err(|error| format!("your subordinate ids cannot be used: {error}"))?;
        Ok((access, subordinates))
    }

    /// Removes a tree; see [`tree::remove`].
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        match (tree::remove(path), self) {
            (Err(error), Self::Mapped { .. }) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.run_helper(Work::Remove(path.to_owned())).map(drop)
            }
            (done, _) => done,
        }
    }

    /// Measures a tree; see [`tree::usage`].
    pub(crate) fn usage(&self, path: &Path) -> Usage {
        match self {
            Self::Direct => tree::usage(path),
            Self::Mapped { .. } => match self.run_helper(Work::Measure(path.to_owned())) {
                Ok((bytes, inodes)) => Usage { bytes, inodes },
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "A sandbox's files are measured only in part");
                    tree::usage(path)
                }
            },
        }
    }

    fn run_helper(&self, work: Work) -> io::Result<(u64, u64)> {
        let Self::Mapped { helper, subordinates } = self else { return Ok((0, 0)) };
        let mut child = Command::new(helper.path())
            .arg0(HELPER_NAME)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(input) = child.stdin.take() {
            let job = Job { subordinates: subordinates.clone(), work };
            // A helper that does not read has exited; its missing output is reported below.
            let _ = serde_json::to_writer(input, &job);
        }
        let output = child.wait_with_output()?;
        let result: HelperOutput = serde_json::from_slice(&output.stdout)
            .map_err(|_| io::Error::other(format!("a helper ended with {}", output.status)))?;
        result.map_err(io::Error::other)
    }
}

/// Removes the data folder of a node that no longer runs, or a part of it, including files that belong to sandboxes'
/// user ids.
///
/// # Errors
/// The kernel's. What could not be removed stays where it is.
pub fn remove_data(path: &Path) -> io::Result<()> {
    let removed = FileAccess::Direct.remove(path);
    match removed {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let (access, _) = FileAccess::mapped(&HelperProgram::CurrentExecutable).map_err(io::Error::other)?;
            access.remove(path)
        }
        done => done,
    }
}

/// Runs the helper and exits when this process was started as one.
#[expect(clippy::exit, reason = "a helper must never return into the embedding program's main")]
pub(crate) fn run_if_helper() {
    if std::env::args_os().next().is_some_and(|name| name == HELPER_NAME) {
        let output = run_job(io::stdin().lock());
        let written = serde_json::to_writer(io::stdout().lock(), &output);
        std::process::exit(i32::from(written.is_err()));
    }
}

fn run_job(input: impl io::Read) -> HelperOutput {
    let job: Job = serde_json::from_reader(input).map_err(|error| error.to_string())?;
    job.subordinates.enter_all().map_err(|error| error.to_string())?;
    match job.work {
        Work::Try => Ok((0, 0)),
        Work::Remove(path) => tree::remove(&path).map(|()| (0, 0)).map_err(|error| error.to_string()),
        Work::Measure(path) => {
            let Usage { bytes, inodes } = tree::usage(&path);
            Ok((bytes, inodes))
        }
    }
}
