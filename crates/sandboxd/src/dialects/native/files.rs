//! File operations of the API. A request names its file in the query or body, as a path below the base directory or,
//! with a leading slash, below the sandbox's root.

mod inspect;
mod tar;
mod transfer;

use std::sync::Arc;

use agent_sandbox_protocol::native::{FileInfo, FileOperation, FileType as Kind};
use http::{Request, Response, StatusCode};
use rustix::fs::{AtFlags, FileType, Mode, RenameFlags, Stat, renameat, renameat_with};
use rustix::io::Errno;

use super::error::{ApiError, with_path};
use super::json_body;
use super::routes::{Operation, Query};
use super::stream::Format;
use crate::core::Sandbox;
use crate::core::files::tree::{copy, make_directories, remove};
use crate::core::files::{FileError, Follow, Located, blocking, require_single_name};
use crate::core::paths::Purpose;
use crate::core::paths::RelPath;
use crate::http_io::body::{self, Body};

const MAX_REQUEST: usize = 64 * 1024;

pub(super) async fn perform(
    sandbox: Arc<Sandbox>,
    operation: Operation,
    query: &Query,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    match operation {
        Operation::FileWrite => transfer::write(sandbox, query, request).await,
        Operation::FileDelete => {
            let recursive = query.flag("recursive")?;
            let path = query.required("path")?.to_owned();
            change(&path.clone(), move || remove(&locate(&sandbox, &path, Purpose::List, Follow::Never)?.1, recursive))
                .await
        }
        Operation::FileStat => inspect::stat(sandbox, query).await,
        Operation::FileList => inspect::list(sandbox, query).await,
        Operation::FileGlob => inspect::glob(sandbox, query).await,
        Operation::FileSearch => inspect::search(sandbox, query).await,
        Operation::FileWatch => {
            let format = Format::accepted(request.headers()).unwrap_or(Format::Lines);
            inspect::watch(sandbox, query, format).await
        }
        Operation::TarDownload => tar::download(sandbox, query).await,
        Operation::TarUpload => tar::upload(sandbox, query, request).await,
        Operation::FileMkdir | Operation::FileMove | Operation::FileCopy | Operation::FileChmod => {
            let fields: FileOperation = json_body::read(request, MAX_REQUEST).await?;
            change_tree(sandbox, operation, fields).await
        }
        _ => transfer::read(sandbox, query, request).await,
    }
}

/// Runs a change on a blocking thread; errors name `path`.
async fn change(
    path: &str,
    work: impl FnOnce() -> Result<(), FileError> + Send + 'static,
) -> Result<Response<Body>, ApiError> {
    blocking(work).await.map_err(with_path(path))?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

async fn change_tree(
    sandbox: Arc<Sandbox>,
    operation: Operation,
    fields: FileOperation,
) -> Result<Response<Body>, ApiError> {
    let field = |value: Option<String>, name: &str| {
        value.ok_or_else(|| ApiError::invalid(format!("{name:?} is missing from the request body")))
    };
    let mode = fields.mode.as_deref().map(parse_mode).transpose()?;
    match operation {
        Operation::FileMkdir => {
            let path = field(fields.path, "path")?;
            change(&path.clone(), move || {
                let path = sandbox.paths.resolve(path.as_bytes(), Purpose::Write)?;
                make_directories(sandbox.paths.root(), &path, mode.unwrap_or(0o755))
            })
            .await
        }
        Operation::FileChmod => {
            let path = field(fields.path, "path")?;
            let mode = mode.ok_or_else(|| ApiError::invalid("\"mode\" is missing from the request body"))?;
            change(&path.clone(), move || {
                let (_, located) = locate(&sandbox, &path, Purpose::Read, Follow::Link)?;
                change_mode(&located, mode, sandbox.paths.root().is_file_system_root())
            })
            .await
        }
        Operation::FileMove => {
            let (from, to) = (field(fields.from, "from")?, field(fields.to, "to")?);
            change(&format!("{from} -> {to}"), move || {
                let (_, source) = locate(&sandbox, &from, Purpose::List, Follow::Never)?;
                let path = sandbox.paths.resolve(to.as_bytes(), Purpose::Write)?;
                let target = sandbox.paths.root().locate_creating_parents(&path)?;
                move_entry(&source, &target, fields.overwrite)
            })
            .await
        }
        _ => {
            let (from, to) = (field(fields.from, "from")?, field(fields.to, "to")?);
            change(&format!("{from} -> {to}"), move || {
                let (_, source) = locate(&sandbox, &from, Purpose::Read, Follow::Link)?;
                let path = sandbox.paths.resolve(to.as_bytes(), Purpose::Write)?;
                let root = sandbox.paths.root();
                let target = root.locate_creating_parents(&path)?;
                if target.exists() && !fields.overwrite {
                    return Err(FileError::Os(Errno::EXIST));
                }
                copy(root, &source, &path)
            })
            .await
        }
    }
}

fn move_entry(source: &Located, target: &Located, overwrite: bool) -> Result<(), FileError> {
    let Located::Entry { parent: from, name: old, stat: Some(_) } = source else {
        return Err(FileError::Os(if source.exists() { Errno::BUSY } else { Errno::NOENT }));
    };
    let Located::Entry { parent: to, name: new, .. } = target else { return Err(FileError::Os(Errno::BUSY)) };
    if overwrite {
        return Ok(renameat(from, old, to, new)?);
    }
    match renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        // The file system has no RENAME_NOREPLACE: rely on the check made before.
        Err(Errno::INVAL | Errno::NOSYS) if !target.exists() => Ok(renameat(from, old, to, new)?),
        other => Ok(other?),
    }
}

fn change_mode(located: &Located, mode: u32, whole_root: bool) -> Result<(), FileError> {
    let directory = located.is_directory();
    let descriptor = if directory { located.open_directory()? } else { located.open_file()?.0 };
    if !directory && !whole_root {
        require_single_name(&descriptor)?;
    }
    Ok(rustix::fs::fchmod(&descriptor, Mode::from_raw_mode(mode))?)
}

/// Parses `755`, `0755` or `1777`.
fn parse_mode(text: &str) -> Result<u32, ApiError> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777 && text.len() <= 5);
    mode.ok_or_else(|| ApiError::invalid(format!("mode: {text:?} is not octal permission bits such as 0644")))
}

fn locate(sandbox: &Sandbox, path: &str, purpose: Purpose, follow: Follow) -> Result<(RelPath, Located), FileError> {
    let path = sandbox.paths.resolve(path.as_bytes(), purpose)?;
    let located = sandbox.paths.root().locate(&path, follow)?;
    Ok((path, located))
}

fn describe(path: &RelPath, stat: &Stat, link_target: Option<String>) -> FileInfo {
    let nanoseconds = i32::try_from(stat.st_mtime_nsec).unwrap_or_default();
    let modified = jiff::Timestamp::new(stat.st_mtime, nanoseconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    FileInfo {
        path: path.display(),
        name: path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        },
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        mode: format!("{:04o}", stat.st_mode & 0o7777),
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_at: modified.to_string(),
        link_target,
    }
}

fn link_target(located: &Located) -> Option<String> {
    let Located::Entry { parent, name, stat: Some(stat) } = located else { return None };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return None;
    }
    let target = rustix::fs::readlinkat(parent, name, Vec::new()).ok()?;
    Some(target.to_string_lossy().into_owned())
}

fn lstat(parent: &std::os::fd::OwnedFd, name: &std::ffi::CStr) -> Option<Stat> {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()
}
