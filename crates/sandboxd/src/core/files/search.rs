//! Finds files by glob and lines by regular expression, within limits on time and size.

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobMatcher};
use regex::bytes::{Regex, RegexBuilder};
use rustix::fs::{FileType, Stat};

use super::FileError;
use super::tree::{Visit, visit};
use crate::core::paths::RelPath;

const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_LINE: u64 = 64 * 1024;
const MAX_MATCH_TEXT: usize = 400;
/// A file with a NUL byte within its first `TEXT_PROBE` bytes is binary and is skipped.
const TEXT_PROBE: usize = 8 * 1024;

/// Why a pattern is invalid.
#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    #[error("not a valid glob: {0}")]
    Glob(#[from] globset::Error),
    #[error("not a valid regular expression: {0}")]
    Regex(#[from] regex::Error),
}

/// A file whose path matched.
#[derive(Debug)]
pub struct FoundFile {
    pub path: RelPath,
    pub stat: Stat,
    pub link_target: Option<String>,
}

/// A line that matched.
#[derive(Debug, PartialEq, Eq)]
pub struct FoundLine {
    pub path: RelPath,
    pub line: u64,
    pub text: String,
}

/// Results up to a limit.
#[derive(Debug)]
pub struct Found<T> {
    pub items: Vec<T>,
    pub files: u64,
    pub truncated: bool,
}

/// `**` crosses directories, `*` does not.
pub fn glob(pattern: &str) -> Result<GlobMatcher, PatternError> {
    Ok(GlobBuilder::new(pattern).literal_separator(true).build()?.compile_matcher())
}

pub fn regex(pattern: &str, ignore_case: bool) -> Result<Regex, PatternError> {
    Ok(RegexBuilder::new(pattern).case_insensitive(ignore_case).size_limit(1 << 20).dfa_size_limit(1 << 20).build()?)
}

/// Everything below `directory` whose path matches.
pub fn find_files(directory: &OwnedFd, matcher: &GlobMatcher, limit: usize) -> Result<Found<FoundFile>, FileError> {
    let mut found = Found { items: Vec::new(), files: 0, truncated: false };
    let deadline = Instant::now() + SEARCH_TIMEOUT;
    visit(directory, |visit| {
        found.files += 1;
        if matcher.is_match(visit.path.as_os_string()) {
            if found.items.len() >= limit {
                found.truncated = true;
                return Ok(ControlFlow::Break(()));
            }
            let link_target = (visit.kind() == FileType::Symlink).then(|| visit.link_target().ok()).flatten();
            found.items.push(FoundFile {
                path: visit.path.clone(),
                stat: *visit.stat,
                link_target: link_target.map(|target| target.to_string_lossy().into_owned()),
            });
        }
        Ok(found.check_deadline(deadline))
    })?;
    Ok(found)
}

/// Lines of text files below `directory` that match.
pub fn find_lines(
    directory: &OwnedFd,
    pattern: &Regex,
    only: Option<&GlobMatcher>,
    limit: usize,
) -> Result<Found<FoundLine>, FileError> {
    let mut found = Found { items: Vec::new(), files: 0, truncated: false };
    let deadline = Instant::now() + SEARCH_TIMEOUT;
    visit(directory, |visit| {
        let wanted = visit.kind() == FileType::RegularFile
            && only.is_none_or(|matcher| matcher.is_match(visit.path.as_os_string()));
        if wanted {
            found.files += 1;
            search_file(visit, pattern, limit, deadline, &mut found);
            if found.truncated {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(found.check_deadline(deadline))
    })?;
    Ok(found)
}

impl<T> Found<T> {
    fn check_deadline(&mut self, deadline: Instant) -> ControlFlow<()> {
        if Instant::now() < deadline {
            return ControlFlow::Continue(());
        }
        self.truncated = true;
        ControlFlow::Break(())
    }
}

/// Files that cannot be read are skipped.
fn search_file(visit: &Visit<'_>, pattern: &Regex, limit: usize, deadline: Instant, found: &mut Found<FoundLine>) {
    let Ok(file) = visit.open_file() else { return };
    let mut reader = BufReader::with_capacity(64 * 1024, std::fs::File::from(file));
    let Ok(start) = reader.fill_buf() else { return };
    if start[..start.len().min(TEXT_PROBE)].contains(&0) {
        return;
    }
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        match (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(read) if read > 0 => {}
            _ => return,
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if pattern.is_match(text) {
            if found.items.len() >= limit {
                found.truncated = true;
                return;
            }
            let shown = String::from_utf8_lossy(&text[..text.len().min(MAX_MATCH_TEXT)]).into_owned();
            found.items.push(FoundLine { path: visit.path.clone(), line: number, text: shown });
        }
        if number % 1024 == 0 && Instant::now() >= deadline {
            found.truncated = true;
            return;
        }
    }
}
