//! Errors of the kernel half, as far as the kubelet half has to distinguish them.

use std::io;

/// A failed runtime call. [`RuntimeError::reason`] gives the word for Pod status and events.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The Pod is unknown to this node.
    #[error("pod {0} is not known to this node")]
    UnknownPod(String),
    /// The container is unknown or not running.
    #[error("container {container} of pod {pod} is not running")]
    NotRunning { pod: String, container: String },
    /// The request violates a rule of this node; a retry cannot succeed.
    #[error("refused: {0}")]
    Refused(String),
    /// The command could not be executed (not found, not executable, working folder missing).
    #[error("cannot run {command}: {message}")]
    CannotRun {
        command: String,
        message: String,
        /// The program does not exist, as opposed to one that cannot be executed.
        missing: bool,
    },
    /// The program of an OCI runtime is not installed.
    #[error(
        "runtime class handler {handler} needs the program {program}, which is not installed; install it, or leave runtimeClassName out"
    )]
    MissingProgram { handler: String, program: String },
    /// The Pod's supervisor is lost, and the Pod with it.
    #[error("the supervisor of pod {0} is gone")]
    SupervisorLost(String),
    /// No address, id block or disk space is left.
    #[error("no {what} left: {advice}")]
    Exhausted { what: &'static str, advice: String },
    /// The image cannot be used.
    #[error("image cannot be used")]
    Image(#[source] super::ImageError),
    /// A system call of the set-up failed.
    #[error("{step} failed")]
    Kernel {
        step: String,
        #[source]
        source: io::Error,
    },
    /// The supervisor sent an unexpected response.
    #[error("supervisor protocol: {0}")]
    Protocol(String),
    /// A call did not finish in time.
    #[error("{0} did not finish in time")]
    Timeout(&'static str),
}

impl RuntimeError {
    /// The CamelCase word for a container's waiting reason or a Pod event.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused(_) => "CreateContainerConfigError",
            Self::CannotRun { .. } => "RunContainerError",
            Self::MissingProgram { .. } => "RuntimeClassUnavailable",
            Self::Exhausted { .. } => "NodeResourcesExhausted",
            Self::Image(_) => "ImageInspectError",
            Self::UnknownPod(_) | Self::NotRunning { .. } | Self::SupervisorLost(_) => "ContainerGone",
            Self::Kernel { .. } | Self::Protocol(_) | Self::Timeout(_) => "CreateContainerError",
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::CannotRun { .. } | Self::UnknownPod(_) | Self::NotRunning { .. })
    }
}

/// The text of an error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
