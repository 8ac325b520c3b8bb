//! Conversion of the SDK's errors to Python exceptions, which `agent_sandbox.errors` defines.

use agent_sandbox_api::snapshot::SnapshotReason;
use agent_sandbox_client::{ClientError, native::ErrorCode};
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyBytes,
};

/// The exception for an error; a plain `RuntimeError` when `agent_sandbox.errors` cannot be imported.
pub(crate) fn raise(py: Python<'_>, error: &ClientError) -> PyErr {
    if let ClientError::Invalid(message) = error {
        return PyValueError::new_err(message.clone());
    }
    match build(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyRuntimeError::new_err(error.full()),
    }
}

fn build<'py>(py: Python<'py>, error: &ClientError) -> PyResult<Bound<'py, PyAny>> {
    let body = match error {
        ClientError::Refused { body, .. } => Some(PyBytes::new(py, body)),
        _ => None,
    };
    let errors = py.import("agent_sandbox.errors")?;
    errors.call_method1("from_native", (kind(error), error.full(), error.status(), body))
}

/// The key by which the Python side chooses the exception class.
fn kind(error: &ClientError) -> &'static str {
    match error {
        ClientError::NotFound { kind: "snapshot", .. } => "no_snapshot",
        ClientError::NotFound { .. } => "not_found",
        ClientError::NoSource { .. } => "no_source",
        ClientError::AlreadyExists { .. } => "already_exists",
        ClientError::Timeout { .. } | ClientError::CallTimeout { .. } | ClientError::NoGateway { .. } => "timeout",
        ClientError::Failed { reason, .. } => match reason.as_str() {
            "TemplateNotFound" => "no_template",
            "WarmPoolNotFound" => "no_pool",
            reason if reason == SnapshotReason::Refused.as_str() => "snapshot_failed",
            reason if reason == SnapshotReason::SandboxNotFound.as_str() => "not_found",
            _ => "claim_failed",
        },
        ClientError::CannotStart { .. } => "claim_failed",
        ClientError::Deleted { .. } => "deleted",
        ClientError::Suspended { .. } | ClientError::NotRunning { .. } => "not_ready",
        ClientError::NoCluster { .. } | ClientError::Configuration { .. } => "no_cluster",
        ClientError::NoRouter { .. } | ClientError::Dial { .. } => "port_forward",
        ClientError::NoService { .. } => "no_service",
        ClientError::Api { .. } => match error.status() {
            Some(401) => "credentials",
            _ => "api",
        },
        ClientError::Refused { code: Some(ErrorCode::NotFound), .. } => "file_not_found",
        ClientError::Refused { code: Some(ErrorCode::OutcomeUnknown), .. } | ClientError::OutcomeUnknown { .. } => {
            "outcome_unknown"
        }
        ClientError::Refused { .. } => "request",
        ClientError::Disconnected { .. } | ClientError::Stream { .. } => "disconnected",
        ClientError::TooLarge { .. } | ClientError::OutOfMemory { .. } => "too_large",
        ClientError::Unsupported { .. } => "unsupported",
        ClientError::NoContainer { .. } | ClientError::File { .. } | ClientError::Invalid(_) => "error",
    }
}
