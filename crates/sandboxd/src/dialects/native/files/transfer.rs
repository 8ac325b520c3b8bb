//! Reads a file (with ranges) and writes one: replaced atomically, or appended to.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::{locate, parse_mode};
use crate::core::Sandbox;
use crate::core::files::write::{BatchWriter, Permissions, Replacement};
use crate::core::files::{FileError, Follow, Located, blocking, require_regular, require_single_name};
use crate::core::paths::Purpose;
use crate::dialects::native::error::{ApiError, with_path};
use crate::dialects::native::routes::Query;
use crate::http_io::body::{self, Body};
use crate::http_io::download;

pub(super) async fn read(
    sandbox: Arc<Sandbox>,
    query: &Query,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let path = query.required("path")?.to_owned();
    let failed = with_path(&path);
    let opened = blocking(move || locate(&sandbox, &path, Purpose::Read, Follow::Link)?.1.open_file());
    let (file, stat) = opened.await.map_err(failed)?;
    Ok(download::respond(&request, file, &stat, None))
}

enum Destination {
    Replace(Replacement),
    Append(Arc<OwnedFd>),
}

pub(super) async fn write(
    sandbox: Arc<Sandbox>,
    query: &Query,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let path = query.required("path")?.to_owned();
    let failed = with_path(&path);
    let permissions = query.get("mode").map(parse_mode).transpose()?.map_or(Permissions::Keep, Permissions::Exactly);
    let append = query.flag("append")?;
    let limit = sandbox.limits.upload_bytes;
    let destination = blocking(move || {
        let path = sandbox.paths.resolve(path.as_bytes(), Purpose::Write)?;
        let located = sandbox.paths.root().locate_creating_parents(&path)?;
        match located.exists() && append {
            true => {
                let file = open_to_append(&located)?;
                if !sandbox.paths.root().is_file_system_root() {
                    require_single_name(&file)?;
                }
                Ok(Destination::Append(Arc::new(file)))
            }
            false => Ok(Destination::Replace(Replacement::begin(&located, permissions)?)),
        }
    })
    .await;
    let destination = match destination {
        Ok(destination) => destination,
        Err(error) => {
            body::discard(request.into_body()).await;
            return Err(failed(error));
        }
    };
    let file = match &destination {
        Destination::Replace(replacement) => replacement.descriptor(),
        Destination::Append(file) => Arc::clone(file),
    };
    write_body(request.into_body(), file, limit).await?;
    if let Destination::Replace(replacement) = destination {
        blocking(move || replacement.commit(false)).await?;
    }
    Ok(body::empty(StatusCode::NO_CONTENT))
}

/// Writes a body to a file, frame by frame.
pub(crate) async fn write_body(mut incoming: Body, file: Arc<OwnedFd>, limit: u64) -> Result<u64, ApiError> {
    let mut writer = BatchWriter::new(file);
    let mut total = 0_u64;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|_| ApiError::invalid("body ended early"))?;
        let Ok(bytes) = frame.into_data() else { continue };
        total += bytes.len() as u64;
        if total > limit {
            let message = format!("body is larger than {limit} bytes");
            return Err(ApiError::new(agent_sandbox_protocol::native::ErrorCode::TooLarge, message));
        }
        writer.push(bytes).await?;
    }
    Ok(writer.finish().await?)
}

fn open_to_append(located: &Located) -> Result<OwnedFd, FileError> {
    // Opened for reading first, because that function checks the type of the file.
    drop(located.open_file()?);
    let Located::Entry { parent, name, .. } = located else { return Err(FileError::Os(Errno::ISDIR)) };
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty())?;
    require_regular(&file)?;
    Ok(file)
}
