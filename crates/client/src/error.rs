//! What can go wrong, in the words of somebody who wants to know what to do next.

use std::time::Duration;
use thiserror::Error;

/// A failed call of the SDK.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("{kind} `{name}` not found in namespace `{namespace}`")]
    NotFound { kind: &'static str, namespace: String, name: String },
    #[error("`{name}` already exists in namespace `{namespace}`; choose another name or delete it first")]
    AlreadyExists { namespace: String, name: String },
    #[error("`{name}` was not {wanted} after {}: {last}", human(*after))]
    Timeout { name: String, wanted: &'static str, after: Duration, last: String },
    #[error("`{name}` cannot become ready: {reason}: {message}")]
    Failed { name: String, reason: String, message: String },
    #[error("`{name}` is suspended; resume it first")]
    Suspended { name: String },
    #[error("`{name}` has no running Pod yet ({last})")]
    NotRunning { name: String, last: String },
    #[error("`{name}` has no container `{container}`; it has: {present}")]
    NoContainer { name: String, container: String, present: String },
    #[error("cannot {operation}")]
    Api {
        operation: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot connect to port {port} of `{name}`: {message}")]
    Dial { name: String, port: u16, message: String },
    #[error("`{path}` of `{name}`: {message}")]
    File { name: String, path: String, message: String },
    #[error("cannot {operation}: the stream broke")]
    Stream {
        operation: String,
        #[source]
        source: std::io::Error,
    },
}

impl ClientError {
    /// Turns an answer of the API into an error that names what was being done.
    pub(crate) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Api { operation, source: Box::new(source) }
    }
}

fn human(duration: Duration) -> String {
    if duration < Duration::from_secs(10) { format!("{duration:.1?}") } else { format!("{} s", duration.as_secs()) }
}

/// Whether the API said that the object does not exist.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
