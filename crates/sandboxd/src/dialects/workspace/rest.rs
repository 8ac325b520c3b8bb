//! `/v1/files`, `/v1/health` and `/v1/metadata`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_sandbox_protocol::runtime::FileKind;
use agent_sandbox_protocol::workspace::{Entry, ErrorBody, ErrorCode, Health, Listing};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use rustix::io::Errno;

use super::Workspace;
use crate::core::files::list::{self, read_directory};
use crate::core::files::tree::remove;
use crate::core::files::write::{BatchWriter, Permissions, Replacement};
use crate::core::files::{FileError, Follow, Located, blocking};
use crate::core::paths::decode_once;
use crate::http_io::body::{self, Body};
use crate::http_io::download;
use crate::http_io::form::Form;

/// An error response of the dialect.
#[derive(Debug)]
struct RestError {
    code: ErrorCode,
    message: String,
}

impl RestError {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn into_response(self) -> Response<Body> {
        let mut bytes = serde_json::to_vec(&ErrorBody { code: self.code, message: self.message }).unwrap_or_default();
        bytes.push(b'\n');
        body::json_bytes(self.code.status(), bytes)
    }
}

impl From<FileError> for RestError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Escapes => {
                Self::new(ErrorCode::PermissionDenied, "path traversal outside sandbox root is forbidden")
            }
            FileError::Refused(what) => Self::new(ErrorCode::PermissionDenied, format!("permission denied: {what}")),
            FileError::Os(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                Self::new(ErrorCode::PermissionDenied, "permission denied")
            }
            error if error.is_missing() => Self::new(ErrorCode::NotFound, "path does not exist within the sandbox"),
            FileError::Os(Errno::ISDIR) => Self::new(ErrorCode::InvalidArgument, "path is a directory"),
            FileError::Os(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => {
                Self::new(ErrorCode::Conflict, "directory is not empty")
            }
            error => Self::new(ErrorCode::Internal, error.to_string()),
        }
    }
}

impl Workspace {
    /// Handles a request below `/v1`.
    pub async fn serve(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let (allowed, response) = match path.as_str() {
            "/v1/health" => ("GET, HEAD", self.health()),
            "/v1/metadata" => ("GET, HEAD", body::json(StatusCode::OK, &self.metadata)),
            "/v1/files" => return self.files("", request).await,
            path => match path.strip_prefix("/v1/files/") {
                Some(argument) => return self.files(argument, request).await,
                None => return body::text(StatusCode::NOT_FOUND, "404 page not found\n"),
            },
        };
        if matches!(*request.method(), Method::GET | Method::HEAD) { response } else { not_allowed(allowed) }
    }

    fn health(&self) -> Response<Body> {
        if self.stopping.load(Ordering::Relaxed) {
            return RestError::new(ErrorCode::Unavailable, "sandboxd is shutting down").into_response();
        }
        let health = Health { status: "ok".into(), uptime_seconds: self.started.elapsed().as_secs() };
        body::json(StatusCode::OK, &health)
    }

    async fn files(self: Arc<Self>, argument: &str, request: Request<Body>) -> Response<Body> {
        let given = decode_once(argument);
        let response = match *request.method() {
            Method::GET | Method::HEAD => self.read(given, request).await,
            Method::PUT => self.write(given, request).await,
            Method::DELETE => self.delete(given, request).await,
            _ => return not_allowed("DELETE, GET, HEAD, PUT"),
        };
        response.unwrap_or_else(RestError::into_response)
    }

    async fn read(self: Arc<Self>, given: Vec<u8>, request: Request<Body>) -> Result<Response<Body>, RestError> {
        enum Found {
            File(std::os::fd::OwnedFd, Box<rustix::fs::Stat>),
            Directory(Vec<u8>),
        }
        let found = blocking(move || {
            let path = self.resolve(&given)?;
            let located = self.root.locate(&path, Follow::Link)?;
            if located.is_directory() {
                let mut entries = read_directory(&self.root, &located, &path)?;
                entries.sort_by(|left, right| left.name.cmp(&right.name));
                let shown = String::from_utf8_lossy(&given);
                let path = format!("/{}", shown.trim_start_matches('/'));
                let listing = Listing { path, entries: entries.iter().map(to_entry).collect() };
                return Ok(Found::Directory(serde_json::to_vec(&listing).unwrap_or_default()));
            }
            let (file, stat) = located.open_file()?;
            Ok(Found::File(file, Box::new(stat)))
        })
        .await?;
        Ok(match found {
            Found::File(file, stat) => download::respond(&request, file, &stat, None),
            Found::Directory(bytes) => body::json_bytes(StatusCode::OK, bytes),
        })
    }

    async fn write(self: Arc<Self>, given: Vec<u8>, request: Request<Body>) -> Result<Response<Body>, RestError> {
        let mode = match query_value(&request, "mode") {
            None => Permissions::Keep,
            Some(text) => Permissions::Exactly(parse_mode(&text)?),
        };
        let limit = self.sandbox.limits.upload_bytes;
        let replacement = blocking(move || {
            let path = self.resolve(&given)?;
            Replacement::begin(&self.root.locate_creating_parents(&path)?, mode)
        })
        .await?;
        let mut writer = BatchWriter::new(replacement.descriptor());
        if is_multipart(&request) {
            store_part(request, &mut writer, limit).await?;
        } else {
            store_body(request.into_body(), &mut writer, limit).await?;
        }
        writer.finish().await?;
        blocking(move || replacement.commit(true)).await?;
        Ok(body::empty(StatusCode::NO_CONTENT))
    }

    async fn delete(self: Arc<Self>, given: Vec<u8>, request: Request<Body>) -> Result<Response<Body>, RestError> {
        let recursive = match query_value(&request, "recursive").as_deref() {
            None => false,
            Some("1" | "t" | "T" | "TRUE" | "true" | "True") => true,
            Some("0" | "f" | "F" | "FALSE" | "false" | "False") => false,
            Some(other) => {
                return Err(RestError::new(
                    ErrorCode::InvalidArgument,
                    format!("recursive: {other:?} is not a boolean"),
                ));
            }
        };
        let removed = blocking(move || {
            let path = self.resolve(&given)?;
            let located = self.root.locate(&path, Follow::Never)?;
            if matches!(located, Located::Directory(_)) && !recursive {
                return Err(FileError::Os(Errno::NOTEMPTY));
            }
            remove(&located, recursive)
        })
        .await;
        removed?;
        Ok(body::empty(StatusCode::NO_CONTENT))
    }
}

fn not_allowed(allowed: &'static str) -> Response<Body> {
    let mut response = body::text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

fn to_entry(entry: &list::Entry) -> Entry {
    let modified = jiff::Timestamp::from_second(entry.stat.st_mtime).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    Entry {
        name: entry.name.to_string_lossy().into_owned(),
        size: entry.stat.st_size,
        kind: if entry.is_directory() { FileKind::Directory } else { FileKind::File },
        modified_at: modified.to_string(),
        mode: format!("{:04o}", entry.stat.st_mode & 0o777),
    }
}

fn query_value(request: &Request<Body>, name: &str) -> Option<String> {
    let pairs = request.uri().query()?.split('&');
    let value = pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1;
    Some(String::from_utf8_lossy(&decode_once(value)).into_owned())
}

/// Parses `0` followed by exactly three octal digits.
fn parse_mode(text: &str) -> Result<u32, RestError> {
    let digits = text.strip_prefix('0').filter(|digits| digits.len() == 3);
    let mode = digits.and_then(|digits| u32::from_str_radix(digits, 8).ok()).filter(|_| !text.contains('+'));
    mode.ok_or_else(|| {
        RestError::new(ErrorCode::InvalidArgument, format!("mode: {text:?} does not match ^0[0-7]{{3}}$"))
    })
}

fn is_multipart(request: &Request<Body>) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().to_ascii_lowercase().starts_with(b"multipart/form-data"))
}

fn broken(error: impl std::fmt::Display) -> RestError {
    RestError::new(ErrorCode::InvalidArgument, format!("malformed multipart body: {error}"))
}

async fn store_part(request: Request<Body>, writer: &mut BatchWriter, limit: u64) -> Result<(), RestError> {
    let mut form = Form::of(request).map_err(|_| broken("the content type names no boundary"))?;
    while let Some(part) = form.next().await.map_err(broken)? {
        if part.name.as_deref() != Some("file") {
            continue;
        }
        let mut total = 0_u64;
        while let Some(bytes) = form.chunk().await.map_err(broken)? {
            total += bytes.len() as u64;
            check_limit(total, limit)?;
            writer.push(bytes).await?;
        }
        return Ok(());
    }
    Err(RestError::new(ErrorCode::InvalidArgument, "multipart body has no part named \"file\""))
}

async fn store_body(mut incoming: Body, writer: &mut BatchWriter, limit: u64) -> Result<(), RestError> {
    let mut total = 0_u64;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|_| RestError::new(ErrorCode::InvalidArgument, "body ended early"))?;
        let Ok(bytes) = frame.into_data() else { continue };
        total += bytes.len() as u64;
        check_limit(total, limit)?;
        writer.push(bytes).await?;
    }
    Ok(())
}

fn check_limit(total: u64, limit: u64) -> Result<(), RestError> {
    if total <= limit {
        return Ok(());
    }
    Err(RestError::new(ErrorCode::InvalidArgument, format!("body is larger than {limit} bytes")))
}

#[cfg(test)]
mod tests {
    use super::parse_mode;

    /// D-063
    #[test]
    fn modes_are_a_zero_and_three_octal_digits() {
        assert_eq!(parse_mode("0755").ok(), Some(0o755));
        for bad in ["0999", "777", "abcd", "01777", "", "0", "0+12", "0o75", "-755"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }
}
