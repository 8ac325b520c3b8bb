//! Removing and measuring what sandboxes have written. Root can do both; an ordinary user whose sandboxes have subordinate ids
//! owns neither the files nor the folders, and sends a helper into a user namespace that has those ids.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::config::HelperProgram;
use super::ids::Subordinates;
use super::tree::{self, Usage};

/// `argv[0]` of the helper.
const HELPER_NAME: &str = "agent-sandbox-hands";

/// Who does the work.
#[derive(Debug, Clone)]
pub(crate) enum Hands {
    Own,
    /// A helper that has all of the caller's subordinate ids.
    Mapped {
        helper: HelperProgram,
        subordinates: Subordinates,
    },
}

/// What the helper is told, as one JSON document on its input.
#[derive(Serialize, Deserialize)]
struct Job {
    subordinates: Subordinates,
    work: Work,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Work {
    /// Nothing: whether the ids can be had at all.
    Try,
    Remove(PathBuf),
    Measure(PathBuf),
}

/// What it answers: bytes and inodes, or why not.
type Answer = Result<(u64, u64), String>;

impl Hands {
    /// The caller's subordinate ids, after one try whether they can really be had; else why not.
    pub(crate) fn mapped(helper: &HelperProgram) -> Result<(Self, Subordinates), String> {
        let subordinates = Subordinates::of_caller()?;
        let hands = Self::Mapped { helper: helper.clone(), subordinates: subordinates.clone() };
        hands.send(Work::Try).map_err(|error| format!("your subordinate ids cannot be used: {error}"))?;
        Ok((hands, subordinates))
    }

    /// Removes a tree; see [`tree::remove`].
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        match (tree::remove(path), self) {
            (Err(error), Self::Mapped { .. }) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.send(Work::Remove(path.to_owned())).map(drop)
            }
            (done, _) => done,
        }
    }

    /// Measures a tree; see [`tree::usage`].
    pub(crate) fn usage(&self, path: &Path) -> Usage {
        match self {
            Self::Own => tree::usage(path),
            Self::Mapped { .. } => match self.send(Work::Measure(path.to_owned())) {
                Ok((bytes, inodes)) => Usage { bytes, inodes },
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "A sandbox's files are measured only in part");
                    tree::usage(path)
                }
            },
        }
    }

    fn send(&self, work: Work) -> io::Result<(u64, u64)> {
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
            // One that does not read has ended, and says so below.
            let _ = serde_json::to_writer(input, &job);
        }
        let output = child.wait_with_output()?;
        let answer: Answer = serde_json::from_slice(&output.stdout)
            .map_err(|_| io::Error::other(format!("a helper ended with {}", output.status)))?;
        answer.map_err(io::Error::other)
    }
}

/// Removes a node's data folder, or a part of it, whoever inside its sandboxes owns the files: for folders whose node is gone.
///
/// # Errors
/// The kernel's, with what could not be removed left where it is.
pub fn remove_data(path: &Path) -> io::Result<()> {
    let removed = Hands::Own.remove(path);
    match removed {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let (hands, _) = Hands::mapped(&HelperProgram::CurrentExecutable).map_err(io::Error::other)?;
            hands.remove(path)
        }
        done => done,
    }
}

/// Becomes the helper when this process was started as one.
#[expect(clippy::exit, reason = "a helper must never return into the embedding program's main")]
pub(crate) fn take_over() {
    if std::env::args_os().next().is_some_and(|name| name == HELPER_NAME) {
        let answer = work_for(io::stdin().lock());
        let written = serde_json::to_writer(io::stdout().lock(), &answer);
        std::process::exit(i32::from(written.is_err()));
    }
}

fn work_for(input: impl io::Read) -> Answer {
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
