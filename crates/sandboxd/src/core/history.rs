//! The history of commands that have ended: bounded, in memory and in a file of the sandbox's own writable layer, so
//! that it survives a restart and is charged to the sandbox.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use agent_sandbox_protocol::capture::Capture;
use agent_sandbox_protocol::history::{Entry, OUTPUT_LIMIT};

use super::processes::Exit;
use super::processes::launch::Launch;
use super::processes::log::Stream;

/// Limits of the history: number of commands, and bytes with their output.
const MAX_ENTRIES: usize = 500;
const MAX_BYTES: usize = 1 << 20;

/// Size at which the file is written anew with the entries that are kept. Escapes make its text longer than the output.
const MAX_FILE: u64 = 4 << 20;

/// Exit code of shells for a program that does not exist.
const CANNOT_RUN: i32 = 127;

/// The history of one sandbox.
#[derive(Debug)]
pub struct History {
    /// The first of these files that can be written is used.
    files: Vec<PathBuf>,
    state: Mutex<State>,
    /// Held while the file is written.
    writer: Mutex<()>,
    writing: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The file is read at the first use, not while the sandbox starts.
    loaded: bool,
    entries: VecDeque<Entry>,
    bytes: usize,
    last_id: i32,
    /// Id of the last entry in the file.
    saved_id: i32,
}

impl History {
    /// `files` are tried in order; without any, the history is only in memory.
    pub fn new(files: Vec<PathBuf>) -> Arc<Self> {
        Arc::new(Self { files, state: Mutex::default(), writer: Mutex::default(), writing: AtomicBool::new(false) })
    }

    /// Adds a command. Its id is assigned here.
    pub fn add(self: &Arc<Self>, entry: Entry) {
        self.state().push(entry);
        if self.files.is_empty() || self.writing.swap(true, Ordering::AcqRel) {
            return;
        }
        let history = Arc::clone(self);
        // Not waited for: no response is later because of the file. Without a runtime the daemon is ending, and saves
        // the history itself.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || {
                history.writing.store(false, Ordering::Release);
                history.save();
            });
        }
    }

    /// The last `limit` commands, oldest first, without their output.
    pub fn list(&self, limit: usize) -> Vec<Entry> {
        let state = self.state();
        let skipped = state.entries.len().saturating_sub(limit);
        let summary = |entry: &Entry| Entry {
            argv: entry.argv.clone(),
            started_at: entry.started_at.clone(),
            stdout: None,
            stderr: None,
            ..*entry
        };
        state.entries.iter().skip(skipped).map(summary).collect()
    }

    /// One command with its output.
    pub fn get(&self, id: i32) -> Option<Entry> {
        let state = self.state();
        let index = state.entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
        state.entries.get(index).cloned()
    }

    /// Writes what is not in the file yet.
    pub fn save(&self) {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut lines, newest, all) = {
            let state = self.state();
            let new = state.entries.iter().filter(|entry| entry.id > state.saved_id);
            (encode(new), state.last_id, state.saved_id == 0)
        };
        if lines.is_empty() {
            return;
        }
        for file in &self.files {
            let size = std::fs::symlink_metadata(file).map_or(0, |metadata| metadata.len());
            let anew = all || size + lines.len() as u64 > MAX_FILE;
            if anew {
                lines = encode(self.state().entries.iter());
            }
            match write(file, &lines, anew) {
                Ok(()) => {
                    self.state().saved_id = newest;
                    return;
                }
                Err(error) => tracing::debug!(path = %file.display(), %error, "Cannot keep the history"),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.loaded {
            state.loaded = true;
            let text = self.files.iter().find_map(|file| read(file).ok()).unwrap_or_default();
            state.load(&text);
        }
        state
    }
}

impl State {
    fn load(&mut self, text: &[u8]) {
        // A line that was not written completely, and the rest of one whose beginning was not read, are no JSON.
        let lines = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Entry>(line).ok());
        for entry in lines {
            // Whatever a command has written into the file: ids ascend.
            self.last_id = entry.id.saturating_sub(1).max(self.last_id);
            self.push(entry);
        }
        // After an incomplete line nothing can be appended: the file is written anew.
        self.saved_id = if text.ends_with(b"\n") { self.last_id } else { 0 };
    }

    fn push(&mut self, mut entry: Entry) {
        self.last_id = self.last_id.saturating_add(1);
        entry.id = self.last_id;
        self.bytes += entry.size();
        self.entries.push_back(entry);
        while self.entries.len() > MAX_ENTRIES || (self.bytes > MAX_BYTES && self.entries.len() > 1) {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.size();
        }
    }
}

fn encode<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<u8> {
    let mut lines = Vec::new();
    for entry in entries {
        if serde_json::to_writer(&mut lines, entry).is_ok() {
            lines.push(b'\n');
        }
    }
    lines
}

/// Opens a regular file. Commands can put anything in its place: links are not followed, and a pipe does not block.
fn open(options: &mut std::fs::OpenOptions, path: &Path) -> std::io::Result<std::fs::File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    Ok(file)
}

/// The last [`MAX_FILE`] bytes.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = open(std::fs::OpenOptions::new().read(true), path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(MAX_FILE)))?;
    let mut text = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut text)?;
    Ok(text)
}

fn write(path: &Path, lines: &[u8], anew: bool) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    if !anew {
        return open(std::fs::OpenOptions::new().append(true).create(true), path)?.write_all(lines);
    }
    let partial = path.with_extension("partial");
    let _ = std::fs::remove_file(&partial);
    open(std::fs::OpenOptions::new().write(true).create_new(true), &partial)?.write_all(lines)?;
    std::fs::rename(&partial, path)
}

/// A command that runs and is recorded when it ends.
#[derive(Debug)]
pub struct Recording {
    history: Arc<History>,
    argv: Vec<String>,
    at: SystemTime,
    since: Instant,
    /// The output so far, unless the caller passes it at the end.
    output: Mutex<(Capture, Capture)>,
    finished: AtomicBool,
}

impl Recording {
    pub fn start(history: &Arc<History>, launch: &Launch) -> Self {
        Self {
            history: Arc::clone(history),
            argv: launch.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            at: SystemTime::now(),
            since: Instant::now(),
            output: Mutex::new((Capture::new(OUTPUT_LIMIT), Capture::new(OUTPUT_LIMIT))),
            finished: AtomicBool::new(false),
        }
    }

    pub fn push(&self, stream: Stream, bytes: &[u8]) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        match stream {
            Stream::Stdout => output.0.push(bytes),
            Stream::Stderr => output.1.push(bytes),
        }
    }

    /// Records the end with the output that was pushed.
    pub fn finish(&self, exit: Exit, timed_out: bool) {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        self.finish_with(exit, timed_out, &output.0, &output.1);
    }

    /// Records a command that could not be launched, as a shell would report it.
    pub fn failed(&self, error: &str) {
        let mut stderr = Capture::new(OUTPUT_LIMIT);
        stderr.push(error.as_bytes());
        self.finish_with(Exit::Code(CANNOT_RUN), false, &Capture::new(0), &stderr);
    }

    pub fn finish_with(&self, exit: Exit, timed_out: bool, stdout: &Capture, stderr: &Capture) {
        if self.finished.swap(true, Ordering::Relaxed) {
            return;
        }
        let at = jiff::Timestamp::try_from(self.at).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let entry = Entry {
            exit_code: if timed_out { 124 } else { exit.shell_code() },
            timed_out,
            duration_ms: u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..Entry::started(&self.argv, at.to_string())
        };
        self.history.add(entry.with_output(stdout, stderr));
    }
}

impl Drop for Recording {
    /// A command whose caller disconnects is ended with SIGTERM before its end is seen.
    fn drop(&mut self) {
        self.finish(Exit::Signal(libc::SIGTERM), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, output: usize) -> Entry {
        Entry { argv: vec![name.into()], stdout: Some("x".repeat(output)), ..Entry::default() }
    }

    #[tokio::test]
    async fn number_and_bytes_are_bounded() {
        let history = History::new(Vec::new());
        for number in 1..=MAX_ENTRIES + 10 {
            history.add(entry(&number.to_string(), 0));
        }
        let list = history.list(usize::MAX);
        assert_eq!((list.len(), list[0].id, list[0].argv[0].as_str()), (MAX_ENTRIES, 11, "11"));
        assert_eq!(history.list(1)[0].id, 510);
        for _ in 0..100 {
            history.add(entry("large", 2 * OUTPUT_LIMIT));
        }
        assert!(history.state().bytes <= MAX_BYTES);
        assert!(history.get(1).is_none() && history.get(610).is_some());
    }

    #[tokio::test]
    async fn the_file_continues_after_a_restart_and_stays_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = vec![folder.path().join("not-writable\0"), folder.path().join("state/history")];
        let history = History::new(files.clone());
        history.add(entry("one", 3));
        history.save();
        history.add(entry("two", 0));
        history.save();
        let again = History::new(files.clone());
        assert_eq!(again.get(1).and_then(|entry| entry.stdout).as_deref(), Some("xxx"));
        again.add(entry("three", 0));
        again.save();
        let ids: Vec<i32> = History::new(files.clone()).list(9).iter().map(|entry| entry.id).collect();
        assert_eq!(ids, [1, 2, 3]);
        let control = "\u{1}".repeat(2 * OUTPUT_LIMIT);
        for _ in 0..40 {
            again.add(Entry { stdout: Some(control.clone()), ..Entry::default() });
            again.save();
        }
        assert!(std::fs::metadata(&files[1]).expect("the file").len() <= 2 * MAX_FILE);
        assert_eq!(History::new(files).list(1)[0].id, 43);
    }

    #[tokio::test]
    async fn whatever_a_command_puts_in_the_place_of_the_file_does_no_harm() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        std::fs::write(&path, "garbage\n{\"id\":2147483647,\"argv\":[],\"exitCode\":0,\"startedAt\":\"\",\"durationMs\":0}\n{\"id\":-5,\"argv\":[\"b\"],\"exitCode\":0,\"startedAt\":\"\",\"durationMs\":0}").expect("written");
        let history = History::new(vec![path.clone()]);
        let ids: Vec<i32> = history.list(9).iter().map(|entry| entry.id).collect();
        assert_eq!(ids.len(), 2);
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("elsewhere", &path).expect("a link");
        history.add(entry("c", 0));
        history.save();
        assert!(!folder.path().join("elsewhere").exists());
        std::fs::remove_file(&path).expect("removed");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        assert!(History::new(vec![path]).list(9).is_empty());
    }
}
