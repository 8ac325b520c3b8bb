//! API errors as Kubernetes `Status` objects, with Kubernetes' messages.

use std::fmt;

use http::StatusCode;
use serde_json::{Value, json};

mod field;

pub use field::{FieldError, FieldErrorKind, Path};

const PAGE_NOT_FOUND: &str = "404 page not found";

/// A failed request. Clients branch on `code`, `reason` (which may be empty) and `message`; `details` identifies the
/// object.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub code: StatusCode,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Box<Details>>,
}

/// The object of a failed request, and the causes of the failure.
#[derive(Debug, Clone, Default)]
pub struct Details {
    pub name: String,
    pub group: String,
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    pub retry_after_seconds: Option<u64>,
}

/// One of several causes, usually one per invalid field.
#[derive(Debug, Clone)]
pub struct Cause {
    pub reason: &'static str,
    pub message: String,
    pub field: String,
}

impl ApiError {
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    /// Adds empty `details`, as Kubernetes does where it wraps an error that is not an API status.
    pub fn with_empty_details(mut self) -> Self {
        self.details = Some(Box::default());
        self
    }

    pub(crate) fn with_object(mut self, group: &str, kind: &str, name: &str) -> Self {
        self.details =
            Some(Box::new(Details { group: group.into(), kind: kind.into(), name: name.into(), ..Details::default() }));
        self
    }

    /// 404 for an object of a known resource.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let qualified = qualified(resource, group);
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("{qualified} \"{name}\" not found"))
            .with_object(group, resource, name)
    }

    /// 404 for a path outside all served groups: Kubernetes' router answers it with a line of text.
    pub fn page_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", PAGE_NOT_FOUND)
    }

    /// True for errors that are a line of text instead of a Status.
    pub(crate) fn is_plain_text(&self) -> bool {
        self.message == PAGE_NOT_FOUND && self.details.is_none()
    }

    /// 404 for a path that is not served.
    pub fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
            .with_empty_details()
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let qualified = qualified(resource, group);
        Self::new(StatusCode::CONFLICT, "AlreadyExists", format!("{qualified} \"{name}\" already exists"))
            .with_object(group, resource, name)
    }

    /// 409 because the caller's resourceVersion is not the stored one.
    pub fn stale(group: &str, resource: &str, name: &str) -> Self {
        Self::conflict(
            group,
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let qualified = qualified(resource, group);
        Self::new(
            StatusCode::CONFLICT,
            "Conflict",
            format!("Operation cannot be fulfilled on {qualified} \"{name}\": {why}"),
        )
        .with_object(group, resource, name)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let qualified = qualified(resource, group);
        let message = if name.is_empty() {
            format!("{qualified} is forbidden: {why}")
        } else {
            format!("{qualified} \"{name}\" is forbidden: {why}")
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with_object(group, resource, name)
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
        .with_empty_details()
    }

    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    pub fn not_acceptable(accepted: &[&str]) -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            format!("only the following media types are accepted: {}", accepted.join(", ")),
        )
    }

    pub fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    /// 410: the requested resourceVersion is no longer in the history.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// 504: the requested resourceVersion has not been reached.
    pub fn too_large_version(wanted: u64, current: u64) -> Self {
        let mut error = Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Timeout: Too large resource version: {wanted}, current: {current}"),
        );
        error.details = Some(Box::new(Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge",
                message: "Too large resource version".into(),
                field: String::new(),
            }],
            retry_after_seconds: Some(1),
            ..Details::default()
        }));
        error
    }

    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", format!("Internal error occurred: {message}"))
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    /// 422 with one cause per invalid field.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let mut seen = Vec::new();
        for error in errors {
            let text = error.to_string();
            if !seen.contains(&text) {
                seen.push(text);
            }
        }
        let list = if let [one] = seen.as_slice() { one.clone() } else { format!("[{}]", seen.join(", ")) };
        let qualified = qualified(kind, group);
        let mut error = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{qualified} \"{name}\" is invalid: {list}"),
        )
        .with_object(group, kind, name);
        if let Some(details) = &mut error.details {
            details.causes = errors
                .iter()
                .map(|e| Cause { reason: e.kind.cause(), message: e.body(), field: e.field.clone() })
                .collect();
        }
        error
    }

    /// The `Status` object for the response body or an `ERROR` watch event.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code.as_u16(),
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            status["details"] = details.to_value();
        }
        status
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut out = serde_json::Map::new();
        let mut put = |key: &str, text: &str| {
            if !text.is_empty() {
                out.insert(key.into(), text.into());
            }
        };
        put("name", &self.name);
        put("group", &self.group);
        put("kind", &self.kind);
        put("uid", &self.uid);
        if !self.causes.is_empty() {
            out.insert("causes".into(), self.causes.iter().map(Cause::to_value).collect());
        }
        if let Some(seconds) = self.retry_after_seconds {
            out.insert("retryAfterSeconds".into(), seconds.into());
        }
        Value::Object(out)
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut out = json!({ "reason": self.reason, "message": self.message });
        if !self.field.is_empty() {
            out["field"] = self.field.as_str().into();
        }
        out
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// `sandboxes.agents.x-k8s.io`, or just `pods` for the core group.
pub fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}
