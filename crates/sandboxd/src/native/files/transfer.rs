//! Reading a file (with ranges) and writing one: replaced as a whole, or appended to.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::{locate, parse_mode};
use crate::files::write::{BatchWriter, Permissions, Replacement};
use crate::files::{FileError, Follow, Located, blocking, require_regular, require_single_name};
use crate::native::error::{ApiError, about};
use crate::native::routes::Query;
use crate::runtime::{Purpose, Runtime};
use crate::server::body::{self, Body};
use crate::server::download;

pub(super) async fn read(
    runtime: Arc<Runtime>,
    query: &Query,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let path = query.required("path")?.to_owned();
    let failed = about(&path);
    let opened = blocking(move || locate(&runtime, &path, Purpose::Read, Follow::Link)?.1.open_file());
    let (file, stat) = opened.await.map_err(failed)?;
    Ok(download::respond(&request, file, &stat, None))
}

enum Target {
    Replaced(Replacement),
    Appended(Arc<OwnedFd>),
}

pub(super) async fn write(
    runtime: Arc<Runtime>,
    query: &Query,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let path = query.required("path")?.to_owned();
    let failed = about(&path);
    let permissions = query.get("mode").map(parse_mode).transpose()?.map_or(Permissions::Keep, Permissions::Exactly);
    let append = query.flag("append")?;
    let limit = runtime.max_body;
    let target = blocking(move || {
        let path = runtime.meaning.resolve(path.as_bytes(), Purpose::Write)?;
        let located = runtime.meaning.root().locate_creating_parents(&path)?;
        match located.exists() && append {
            true => {
                let file = open_to_append(&located)?;
                if !runtime.meaning.root().is_whole() {
                    require_single_name(&file)?;
                }
                Ok(Target::Appended(Arc::new(file)))
            }
            false => Ok(Target::Replaced(Replacement::begin(&located, permissions)?)),
        }
    })
    .await
    .map_err(failed)?;
    let file = match &target {
        Target::Replaced(replacement) => replacement.descriptor(),
        Target::Appended(file) => Arc::clone(file),
    };
    store(request.into_body(), file, limit).await?;
    if let Target::Replaced(replacement) = target {
        blocking(move || replacement.commit(false)).await?;
    }
    Ok(body::empty(StatusCode::NO_CONTENT))
}

/// Writes a body to a file, frame by frame.
pub(crate) async fn store(mut incoming: Body, file: Arc<OwnedFd>, limit: u64) -> Result<u64, ApiError> {
    let mut writer = BatchWriter::new(file);
    let mut total = 0_u64;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|_| ApiError::invalid("body broke off"))?;
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
    // Opened for reading first: the checks on what a file is are in one place.
    drop(located.open_file()?);
    let Located::Entry { parent, name, .. } = located else { return Err(FileError::Os(Errno::ISDIR)) };
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty())?;
    require_regular(&file)?;
    Ok(file)
}
