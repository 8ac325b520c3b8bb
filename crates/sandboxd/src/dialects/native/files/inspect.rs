//! Read-only operations: stat, list, glob, search, watch.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use agent_sandbox_protocol::native::{Change, ChangeKind, FileList, Match, SearchResult};
use http::{Response, StatusCode};
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use super::{describe, link_target, locate, lstat};
use crate::core::Sandbox;
use crate::core::files::{FileError, Follow, blocking, search as find};
use crate::core::paths::Purpose;
use crate::core::watches::{self, Watch};
use crate::dialects::native::error::{ApiError, with_path};
use crate::dialects::native::routes::Query;
use crate::dialects::native::stream::{Format, respond_with};
use crate::http_io::body::{self, Body};

/// Default and maximum number of entries and matches in one response.
const ENTRIES: usize = 10_000;
const MAX_ENTRIES: usize = 100_000;
const MATCHES: usize = 1000;
const MAX_MATCHES: usize = 10_000;

pub(super) async fn stat(sandbox: Arc<Sandbox>, query: &Query) -> Result<Response<Body>, ApiError> {
    let path = query.required("path")?.to_owned();
    let failed = with_path(&path);
    let follow = if query.flag("follow")? { Follow::Link } else { Follow::Never };
    let info = blocking(move || {
        let (path, located) = locate(&sandbox, &path, Purpose::Read, follow)?;
        let stat = located.stat()?.ok_or(FileError::Os(Errno::NOENT))?;
        Ok(describe(&path, &stat, link_target(&located)))
    })
    .await
    .map_err(failed)?;
    Ok(body::json(StatusCode::OK, &info))
}

pub(super) async fn list(sandbox: Arc<Sandbox>, query: &Query) -> Result<Response<Body>, ApiError> {
    let path = query.get("path").unwrap_or_default().to_owned();
    let failed = with_path(&path);
    let limit = query.number("limit", ENTRIES)?.min(MAX_ENTRIES);
    let bytes = blocking(move || {
        let (path, located) = locate(&sandbox, &path, Purpose::List, Follow::Link)?;
        let directory = located.open_directory()?;
        let mut list = FileList::default();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if list.entries.len() >= limit {
                list.truncated = true;
                break;
            }
            if let Some(stat) = lstat(&directory, name) {
                let target = read_link(&directory, name, &stat);
                list.entries.push(describe(&path.child(name.to_owned()), &stat, target));
            }
        }
        list.entries.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(serde_json::to_vec(&list).unwrap_or_default())
    })
    .await
    .map_err(failed)?;
    Ok(body::json_bytes(StatusCode::OK, bytes))
}

fn read_link(directory: &OwnedFd, name: &std::ffi::CStr, stat: &rustix::fs::Stat) -> Option<String> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return None;
    }
    let target = rustix::fs::readlinkat(directory, name, Vec::new()).ok()?;
    Some(target.to_string_lossy().into_owned())
}

pub(super) async fn glob(sandbox: Arc<Sandbox>, query: &Query) -> Result<Response<Body>, ApiError> {
    let matcher = find::glob(query.required("pattern")?).map_err(|error| ApiError::invalid(error.to_string()))?;
    let path = query.get("path").unwrap_or_default().to_owned();
    let failed = with_path(&path);
    let limit = query.number("limit", ENTRIES)?.min(MAX_ENTRIES);
    let bytes = blocking(move || {
        let (path, located) = locate(&sandbox, &path, Purpose::List, Follow::Link)?;
        let found = find::find_files(&located.open_directory()?, &matcher, limit)?;
        let entries = found.items.into_iter();
        let entries = entries.map(|file| describe(&path.join(&file.path), &file.stat, file.link_target)).collect();
        Ok(serde_json::to_vec(&FileList { entries, truncated: found.truncated }).unwrap_or_default())
    })
    .await
    .map_err(failed)?;
    Ok(body::json_bytes(StatusCode::OK, bytes))
}

pub(super) async fn search(sandbox: Arc<Sandbox>, query: &Query) -> Result<Response<Body>, ApiError> {
    let invalid = |error: find::PatternError| ApiError::invalid(error.to_string());
    let pattern = find::regex(query.required("pattern")?, query.flag("ignoreCase")?).map_err(invalid)?;
    let only = query.get("glob").map(find::glob).transpose().map_err(invalid)?;
    let path = query.get("path").unwrap_or_default().to_owned();
    let failed = with_path(&path);
    let limit = query.number("limit", MATCHES)?.min(MAX_MATCHES);
    let result = blocking(move || {
        let (path, located) = locate(&sandbox, &path, Purpose::List, Follow::Link)?;
        let found = find::find_lines(&located.open_directory()?, &pattern, only.as_ref(), limit)?;
        let matches = found.items.into_iter();
        let matches =
            matches.map(|item| Match { path: path.join(&item.path).display(), line: item.line, text: item.text });
        Ok(SearchResult { matches: matches.collect(), files_searched: found.files, truncated: found.truncated })
    })
    .await
    .map_err(failed)?;
    Ok(body::json(StatusCode::OK, &result))
}

pub(super) async fn watch(sandbox: Arc<Sandbox>, query: &Query, format: Format) -> Result<Response<Body>, ApiError> {
    let given = query.get("path").unwrap_or_default();
    let path = sandbox.paths.resolve(given.as_bytes(), Purpose::List)?;
    let watching = Change { path: path.display(), change: ChangeKind::Watching };
    let recursive = query.flag("recursive")?;
    let watch = Watch::open(Arc::clone(sandbox.paths.root()), path, recursive).await.map_err(with_path(given))?;
    let first = futures::stream::iter([format.encode(&watching)]);
    let changes = futures::stream::unfold(watch, move |mut watch| async move {
        let changes = watch.next().await.ok()?;
        let mut lines = Vec::new();
        for changed in changes {
            lines.extend_from_slice(
                &format.encode(&Change { path: changed.path.display(), change: wire_kind(changed.kind) }),
            );
        }
        Some((lines.into(), watch))
    });
    Ok(respond_with(format, futures::StreamExt::chain(first, changes)))
}

fn wire_kind(kind: watches::ChangeKind) -> ChangeKind {
    match kind {
        watches::ChangeKind::Created => ChangeKind::Created,
        watches::ChangeKind::Modified => ChangeKind::Modified,
        watches::ChangeKind::Removed => ChangeKind::Removed,
        watches::ChangeKind::MovedFrom => ChangeKind::MovedFrom,
        watches::ChangeKind::MovedTo => ChangeKind::MovedTo,
        watches::ChangeKind::Attributes => ChangeKind::Attributes,
        watches::ChangeKind::Overflow => ChangeKind::Overflow,
    }
}
