//! `/upload`, `/download`, `/list` and `/exists`.

use std::sync::Arc;

use agent_sandbox_protocol::runtime::{ExistsResponse, FileEntry, FileKind, ValidationProblem};
use http::{Request, Response, StatusCode};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::execute::invalid;
use super::{Runtime, access_denied, message};
use crate::core::files::list::read_directory;
use crate::core::files::write::{BatchWriter, Permissions, Replacement};
use crate::core::files::{FileError, Follow, blocking};
use crate::core::paths::{Purpose, decode_once, unescape_form_name};
use crate::http_io::body::{self, Body};
use crate::http_io::download;
use crate::http_io::form::Form;

impl Runtime {
    pub(super) async fn upload(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        let mut form = match Form::of(request) {
            Ok(form) => form,
            Err(unread) => {
                body::discard(unread).await;
                return missing_file();
            }
        };
        let response = self.store_first_file(&mut form).await;
        if !response.status().is_success() {
            body::discard(form.into_body()).await;
        }
        response
    }

    /// Stores the part named `file`.
    async fn store_first_file(self: Arc<Self>, form: &mut Form) -> Response<Body> {
        loop {
            let part = match form.next().await {
                Ok(Some(part)) => part,
                Ok(None) => return missing_file(),
                Err(error) => return message(StatusCode::BAD_REQUEST, format!("File upload failed: {error}")),
            };
            if part.name.as_deref() != Some("file") {
                continue;
            }
            let Some(name) = part.file_name.as_deref().map(unescape_form_name) else {
                return invalid(file_problem(
                    "value_error",
                    "Value error, Expected UploadFile, received: <class 'str'>",
                ));
            };
            return match self.clone().store(&name, form).await {
                Ok(()) => message(StatusCode::OK, format!("File '{name}' uploaded successfully.")),
                Err(UploadError::File(FileError::Escapes | FileError::Refused(_))) => access_denied(),
                Err(UploadError::File(error)) => {
                    message(StatusCode::INTERNAL_SERVER_ERROR, format!("File upload failed: {error}"))
                }
                Err(UploadError::TooLarge(limit)) => {
                    message(StatusCode::PAYLOAD_TOO_LARGE, format!("File upload failed: larger than {limit} bytes"))
                }
                Err(UploadError::Broken(error)) => {
                    message(StatusCode::BAD_REQUEST, format!("File upload failed: {error}"))
                }
            };
        }
    }

    async fn store(self: Arc<Self>, name: &str, form: &mut Form) -> Result<(), UploadError> {
        let given = name.as_bytes().to_vec();
        let runtime = Arc::clone(&self);
        let replacement = blocking(move || {
            let path = runtime.sandbox.paths.resolve(&given, Purpose::Write)?;
            let located = runtime.sandbox.paths.root().locate_creating_parents(&path)?;
            Replacement::begin(&located, Permissions::Keep)
        })
        .await?;
        let mut writer = BatchWriter::new(replacement.descriptor());
        let mut total = 0_u64;
        while let Some(bytes) = form.chunk().await.map_err(|error| UploadError::Broken(error.to_string()))? {
            total += bytes.len() as u64;
            if total > self.sandbox.limits.upload_bytes {
                return Err(UploadError::TooLarge(self.sandbox.limits.upload_bytes));
            }
            writer.push(bytes).await?;
        }
        writer.finish().await?;
        blocking(move || replacement.commit(false)).await?;
        self.sandbox.paths.record_upload(name.as_bytes());
        Ok(())
    }

    pub(super) async fn download(self: Arc<Self>, raw: &str, request: Request<Body>) -> Response<Body> {
        let given = decode_once(raw);
        let shown = String::from_utf8_lossy(&given).into_owned();
        let runtime = Arc::clone(&self);
        let opened = blocking(move || {
            let path = runtime.sandbox.paths.resolve(&given, Purpose::Read)?;
            runtime.sandbox.paths.root().locate(&path, Follow::Link)?.open_file()
        })
        .await;
        match opened {
            Ok((file, stat)) => download::respond(&request, file, &stat, Some(&shown)),
            Err(FileError::Escapes | FileError::Refused(_) | FileError::Os(Errno::ACCESS | Errno::PERM)) => {
                access_denied()
            }
            Err(FileError::Os(Errno::ISDIR)) => message(StatusCode::NOT_FOUND, "File not found"),
            Err(error) if error.is_missing() => message(StatusCode::NOT_FOUND, "File not found"),
            Err(error) => message(StatusCode::INTERNAL_SERVER_ERROR, format!("File download failed: {error}")),
        }
    }

    pub(super) async fn list(self: Arc<Self>, raw: &str) -> Response<Body> {
        let given = decode_once(raw);
        let listed = blocking(move || {
            let path = self.sandbox.paths.resolve(&given, Purpose::List)?;
            let located = self.sandbox.paths.root().locate(&path, Follow::Link)?;
            let entries = read_directory(self.sandbox.paths.root(), &located, &path)?;
            let entries: Vec<FileEntry> = entries.iter().map(to_entry).collect();
            Ok(serde_json::to_vec(&entries).unwrap_or_default())
        })
        .await;
        match listed {
            Ok(bytes) => body::json_bytes(StatusCode::OK, bytes),
            Err(FileError::Escapes | FileError::Refused(_)) => access_denied(),
            Err(error) if error.is_missing() => message(StatusCode::NOT_FOUND, "Path is not a directory"),
            Err(error) => message(StatusCode::INTERNAL_SERVER_ERROR, format!("List files failed: {error}")),
        }
    }

    pub(super) async fn exists(self: Arc<Self>, raw: &str) -> Response<Body> {
        let given = decode_once(raw);
        let path = String::from_utf8_lossy(&given).into_owned();
        let found = blocking(move || {
            let path = self.sandbox.paths.resolve(&given, Purpose::Read)?;
            Ok(self.sandbox.paths.root().locate(&path, Follow::Link)?.exists())
        })
        .await;
        match found {
            Ok(exists) => body::json(StatusCode::OK, &ExistsResponse { path, exists }),
            Err(FileError::Escapes | FileError::Refused(_)) => access_denied(),
            Err(_) => body::json(StatusCode::OK, &ExistsResponse { path, exists: false }),
        }
    }
}

fn to_entry(entry: &crate::core::files::list::Entry) -> FileEntry {
    FileEntry {
        name: entry.name.to_string_lossy().into_owned(),
        size: u64::try_from(entry.stat.st_size).unwrap_or_default(),
        kind: if entry.is_directory() { FileKind::Directory } else { FileKind::File },
        mod_time: entry.stat.st_mtime as f64 + entry.stat.st_mtime_nsec as f64 / 1e9,
    }
}

fn missing_file() -> Response<Body> {
    invalid(file_problem("missing", "Field required"))
}

fn file_problem(kind: &str, msg: &str) -> ValidationProblem {
    ValidationProblem {
        kind: kind.into(),
        loc: vec![json!("body"), json!("file")],
        msg: msg.into(),
        input: Value::Null,
    }
}

/// Why an upload was not stored.
#[derive(Debug, thiserror::Error)]
enum UploadError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("larger than {0} bytes")]
    TooLarge(u64),
    #[error("{0}")]
    Broken(String),
}
