//! `/files`: downloads, and uploads as a form or as the body itself.

mod store;

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_sandbox_protocol::e2b::{Operation, Signed};
use http::{HeaderValue, Request, Response, StatusCode, header};
use rustix::io::Errno;
use serde_json::json;

use super::access::{self, Caller};
use super::connect::RpcError;
use super::user::UserError;
use super::{Envd, User, metadata, plain_error, unauthorized};
use crate::core::files::{FileError, Follow, blocking};
use crate::core::paths::unescape_form_name;
use crate::http_io::body::{self, Body};
use crate::http_io::download;
use crate::http_io::form::Form;
use store::{Encoding, Target};

/// The query of a request for `/files`.
#[derive(Debug, Default)]
struct Query {
    path: Option<String>,
    username: String,
    signature: Option<String>,
    expiration: Option<String>,
}

/// An error with its HTTP status.
#[derive(Debug)]
struct TransferError {
    status: StatusCode,
    message: String,
}

impl TransferError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    fn of_file(path: &str, error: &FileError) -> Self {
        let status = match error {
            FileError::Os(Errno::ISDIR) => StatusCode::BAD_REQUEST,
            FileError::Os(Errno::NOSPC | Errno::DQUOT) => StatusCode::INSUFFICIENT_STORAGE,
            error if error.is_missing() => StatusCode::NOT_FOUND,
            error => RpcError::of_file(path, error).code.status(),
        };
        let text = match status {
            StatusCode::NOT_FOUND => "the file does not exist".to_owned(),
            StatusCode::INSUFFICIENT_STORAGE => "not enough space on the disk".to_owned(),
            _ if error.errno() == Some(Errno::ISDIR) => "is a directory".to_owned(),
            _ => error.to_string(),
        };
        Self::new(status, format!("{path:?}: {text}"))
    }
}

impl From<RpcError> for TransferError {
    fn from(error: RpcError) -> Self {
        Self::new(error.code.status(), error.message)
    }
}

impl From<UserError> for TransferError {
    fn from(error: UserError) -> Self {
        RpcError::from(error).into()
    }
}

impl Envd {
    pub(super) async fn download(&self, request: Request<Body>, caller: Caller) -> Response<Body> {
        let query = Query::of(&request);
        if !self.may_transfer(&request, caller, &query, Operation::Read) {
            return unauthorized();
        }
        let opened = self.open(&query).await;
        let (file, stat, name) = match opened {
            Ok(opened) => opened,
            Err(error) => return plain_error(error.status, error.message),
        };
        let mut response = download::respond(&request, file, &stat, Some(&name));
        let disposition = response.headers_mut().get_mut(header::CONTENT_DISPOSITION);
        // Shown in a browser, not saved.
        if let Some(value) = disposition
            && let Some(rest) = value.to_str().ok().and_then(|text| text.strip_prefix("attachment"))
            && let Ok(inline) = HeaderValue::try_from(format!("inline{rest}"))
        {
            *value = inline;
        }
        response
    }

    async fn open(&self, query: &Query) -> Result<(std::os::fd::OwnedFd, rustix::fs::Stat, String), TransferError> {
        let user = User::named(&self.sandbox, &self.settings, Some(&query.username))?;
        let given = query.path.clone().unwrap_or_default();
        let path = user.resolve(&self.sandbox, &given)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let root = Arc::clone(self.sandbox.paths.root());
        let opened = blocking(move || root.locate(&path, Follow::Link)?.open_file()).await;
        let (file, stat) = opened.map_err(|error| TransferError::of_file(&given, &error))?;
        Ok((file, stat, name))
    }

    pub(super) async fn upload(&self, request: Request<Body>, caller: Caller) -> Response<Body> {
        let query = Query::of(&request);
        if !self.may_transfer(&request, caller, &query, Operation::Write) {
            body::discard(request.into_body()).await;
            return unauthorized();
        }
        match self.receive(request, query).await {
            Ok(written) => body::json(StatusCode::OK, &written),
            Err((error, rest)) => {
                if let Some(rest) = rest {
                    body::discard(rest).await;
                }
                plain_error(error.status, error.message)
            }
        }
    }

    /// Stores every file of the request. An error comes with the body that is not read yet, if any.
    async fn receive(
        &self,
        request: Request<Body>,
        query: Query,
    ) -> Result<Vec<serde_json::Value>, (TransferError, Option<Body>)> {
        let prepared = self.prepare(&request, &query);
        let (user, metadata, encoding) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Err((error, Some(request.into_body()))),
        };
        let target = Target { sandbox: &self.sandbox, user: &user, metadata: &metadata };
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let essence = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/octet-stream" => {
                let Some(path) = query.path else {
                    let error = TransferError::invalid("path is required for an upload of a single body");
                    return Err((error, Some(request.into_body())));
                };
                let written = target.store_body(&path, request.into_body(), encoding).await;
                Ok(vec![written.map_err(|error| (error, None))?])
            }
            "multipart/form-data" => {
                let form = Form::of(request).map_err(|unread| {
                    (TransferError::invalid("the content type of the form names no boundary"), Some(unread))
                })?;
                store_form(&target, form, query.path).await.map_err(|error| (error, None))
            }
            _ => {
                let message =
                    format!("content type {essence:?} is neither multipart/form-data nor application/octet-stream");
                Err((TransferError::invalid(message), Some(request.into_body())))
            }
        }
    }

    fn prepare(
        &self,
        request: &Request<Body>,
        query: &Query,
    ) -> Result<(User, BTreeMap<String, String>, Encoding), TransferError> {
        let user = User::named(&self.sandbox, &self.settings, Some(&query.username))?;
        let metadata = metadata::of_headers(request.headers()).map_err(TransferError::invalid)?;
        Ok((user, metadata, Encoding::of(request.headers())?))
    }

    fn may_transfer(&self, request: &Request<Body>, caller: Caller, query: &Query, operation: Operation) -> bool {
        if self.settings.allows(caller, request.headers()) {
            return true;
        }
        // A wrong token is not made good by a signature.
        let (None, Some(signature)) = (access::given_token(request.headers()), &query.signature) else { return false };
        let signed = Signed {
            path: query.path.as_deref().unwrap_or_default(),
            operation,
            user: &query.username,
            expiration: query.expiration.as_deref(),
        };
        self.settings.verifies(&signed, signature, jiff::Timestamp::now().as_second())
    }
}

/// Stores every part named `file`.
async fn store_form(
    target: &Target<'_>,
    mut form: Form,
    path: Option<String>,
) -> Result<Vec<serde_json::Value>, TransferError> {
    let broken = |error| TransferError::invalid(format!("malformed form: {error}"));
    let mut written: Vec<serde_json::Value> = Vec::new();
    let mut seen = Vec::new();
    while let Some(part) = form.next().await.map_err(broken)? {
        if part.name.as_deref() != Some("file") {
            continue;
        }
        let given = match (&path, part.file_name) {
            (Some(path), _) => path.clone(),
            (None, Some(name)) => unescape_form_name(&name),
            (None, None) => return Err(TransferError::invalid("a part has no file name, and the query no path")),
        };
        let resolved = target.user.resolve(target.sandbox, &given)?;
        if seen.contains(&resolved) {
            return Err(TransferError::invalid(format!("{given:?} occurs twice in the upload")));
        }
        seen.push(resolved);
        written.push(target.store_part(&given, &mut form).await?);
    }
    if written.is_empty() {
        return Err(TransferError::invalid("the form has no part named \"file\""));
    }
    Ok(written)
}

impl Query {
    fn of(request: &Request<Body>) -> Self {
        let mut query = Self::default();
        for pair in request.uri().query().unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value);
            match name {
                "path" => query.path = Some(value).filter(|path| !path.is_empty()),
                "username" => query.username = value,
                "signature" => query.signature = Some(value),
                "signature_expiration" => query.expiration = Some(value),
                _ => {}
            }
        }
        query
    }
}

/// Decodes a value of a query: a plus sign is a space.
fn decode(value: &str) -> String {
    let spaced = value.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

fn written(name: &str, path: &str, metadata: &BTreeMap<String, String>) -> serde_json::Value {
    let mut written = json!({ "name": name, "path": path, "type": "file" });
    if !metadata.is_empty() {
        written["metadata"] = json!(metadata);
    }
    written
}

/// Whether the signature in a request is valid for a token.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_signature(request: &Request<Body>, token: &access::AccessToken) -> bool {
    let query = Query::of(request);
    let path = query.path.as_deref().unwrap_or_default();
    let signed =
        Signed { path, operation: Operation::Read, user: &query.username, expiration: query.expiration.as_deref() };
    query.signature.is_some_and(|signature| token.verifies(&signed, &signature, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E-103
    #[test]
    fn both_forms_of_a_space_are_understood() {
        for text in ["/files?path=%2Fa+b&username=me", "/files?username=me&path=/a%20b"] {
            let request = Request::builder().uri(text).body(Body::empty()).expect("a request");
            let query = Query::of(&request);
            assert_eq!(query.path.as_deref(), Some("/a b"), "{text}");
            assert_eq!(query.username, "me");
        }
    }
}
