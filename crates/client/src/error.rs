//! Errors of the SDK. Their messages state what failed and what to do next.

use agent_sandbox_protocol::native::ErrorCode;
use std::time::Duration;
use thiserror::Error;

/// A failed call of the SDK.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("{kind} `{name}` not found in namespace `{namespace}`")]
    NotFound { kind: &'static str, namespace: String, name: String },
    #[error(
        "`{name}` names neither a warm pool nor a template in namespace `{namespace}`; create one of them, or check the namespace"
    )]
    NoSource { namespace: String, name: String },
    #[error("`{name}` already exists in namespace `{namespace}`; choose another name or delete it first")]
    AlreadyExists { namespace: String, name: String },
    #[error("`{name}` was not {wanted} after {}: {last}", format_duration(*after))]
    Timeout { name: String, wanted: &'static str, after: Duration, last: String },
    #[error("`{name}` cannot become ready: {reason}: {message}")]
    Failed { name: String, reason: String, message: String },
    /// What was tried to start it will not succeed later either.
    #[error("`{name}` cannot start: {reason}")]
    CannotStart { name: String, reason: String },
    #[error("`{name}` was deleted while it was being waited for")]
    Deleted { name: String },
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
    #[error(
        "no cluster to talk to: {tried}. Start an engine here (`agent-sandbox up --detach`) or name a cluster with KUBECONFIG"
    )]
    NoCluster { tried: String },
    #[error("cannot use the cluster's configuration: {message}")]
    Configuration { message: String },
    #[error("cannot connect to port {port} of `{name}`: {message}")]
    Dial { name: String, port: u16, message: String },
    #[error(
        "no router, and no way to the sandbox's own Pod ({direct_error}): Service `sandbox-router-svc` with a running Pod was looked for in namespace {tried}. Install the router, or name its namespace"
    )]
    NoRouter { tried: String, direct_error: String },
    #[error("Gateway `{name}` in namespace `{namespace}` has no address after {}: {last}", format_duration(*after))]
    NoGateway { name: String, namespace: String, after: Duration, last: String },
    #[error("`{name}` has no Service; set `spec.service: true` on its template, or connect by Pod address")]
    NoService { name: String },
    #[error("`{path}` of `{name}`: {message}")]
    File { name: String, path: String, message: String },
    /// The sandbox or the router responded with an error status.
    #[error("`{name}` answered {status} to {operation}: {message}")]
    Refused {
        name: String,
        operation: String,
        status: u16,
        code: Option<ErrorCode>,
        message: String,
        body: bytes::Bytes,
    },
    #[error("cannot {operation}: the stream broke")]
    Stream {
        operation: String,
        #[source]
        source: std::io::Error,
    },
    /// All attempts failed. The request was not sent, or it is safe to send it again.
    #[error("cannot {operation} in `{name}`: {message}. Is the sandbox running, and the router reachable?")]
    Disconnected { name: String, operation: String, message: String },
    /// The request may have been processed: it was sent, and there was no response.
    #[error(
        "outcome unknown: {operation} was sent to `{name}` and no answer came ({message}). Look at its effects before trying again; an idempotency key makes a repetition safe"
    )]
    OutcomeUnknown { name: String, operation: String, message: String },
    #[error("{operation} in `{name}` took longer than {}; give it more time or let it run in the background", format_duration(*after))]
    CallTimeout { name: String, operation: String, after: Duration },
    #[error("{what} is larger than {limit} bytes; stream it instead, or raise the limit")]
    TooLarge { what: String, limit: u64 },
    #[error("{what} has {size} bytes, which do not fit into memory; stream it instead")]
    OutOfMemory { what: String, size: u64 },
    #[error("{0}")]
    Invalid(String),
    #[error("the sandbox's runtime does not know {operation}; its image needs our `sandboxd`")]
    Unsupported { operation: String },
}

impl ClientError {
    /// Converts an error of the API, adding the operation that failed.
    pub(crate) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Api { operation, source: Box::new(source) }
    }

    /// The HTTP status of the response of the API or the sandbox, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// The message with all its causes and advice, on one line.
    pub fn full(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            next = cause.source();
        }
        match self.advice() {
            Some(advice) => format!("{text}. {advice}"),
            None => text,
        }
    }

    fn advice(&self) -> Option<&'static str> {
        match (self, self.status()) {
            (Self::Api { .. }, Some(401)) => {
                Some("The cluster does not accept these credentials; renew them (they may have expired)")
            }
            (Self::Api { .. }, Some(403)) => Some("Ask for the role that allows it, or use another namespace"),
            (Self::Api { .. }, None) => Some("Is the cluster running, and is its address right?"),
            _ => None,
        }
    }
}

fn format_duration(duration: Duration) -> String {
    if duration < Duration::from_secs(10) { format!("{duration:.1?}") } else { format!("{} s", duration.as_secs()) }
}

/// True if the API reported that the object does not exist.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// True if the API reported a conflict: an object of that name exists, or a precondition failed.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// True if a failed request may have been applied nevertheless: it was sent, and the response was lost or is a server
/// error.
pub(crate) fn may_have_been_applied(error: &kube::Error) -> bool {
    if let kube::Error::Api(status) = error {
        return status.code >= 500;
    }
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if cause.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|error| error.is_connect()) {
            return false;
        }
        next = cause.source();
    }
    true
}
