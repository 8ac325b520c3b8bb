//! Conditions of a Sandbox.

use std::borrow::Cow;

use super::{ConditionType, Reason, Truth, Verdict, is_reason};

/// How a Pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOutcome {
    Succeeded,
    Failed,
}

impl PodOutcome {
    const fn reason(self) -> Reason {
        match self {
            Self::Succeeded => Reason::PodSucceeded,
            Self::Failed => Reason::PodFailed,
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Succeeded => "Pod completed successfully",
            Self::Failed => "Pod failed",
        }
    }

    /// The Finished condition, present only while it applies.
    pub fn finished(self) -> Verdict {
        Verdict::new(ConditionType::Finished, Truth::True, self.reason(), self.message())
    }
}

/// The Suspended condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxSuspended {
    /// The Sandbox should run.
    NotSuspended,
    /// No Pod was seen, but looking failed.
    PodStateUnknown,
    /// The Pod is gone.
    PodTerminated,
    /// A Pod that is not ours holds the name.
    PodNotOwned,
    /// Our Pod is still there.
    PodTerminating,
}

impl SandboxSuspended {
    /// What the condition says.
    pub fn verdict(self) -> Verdict {
        let (status, reason, message) = match self {
            Self::NotSuspended => (Truth::False, Reason::NotSuspended, "Sandbox is not suspended"),
            Self::PodStateUnknown => (
                Truth::Unknown,
                Reason::PodStateUnknown,
                "Pod state is unknown. Sandbox suspension cannot be confirmed",
            ),
            Self::PodTerminated => {
                (Truth::True, Reason::PodTerminated, "Pod has been terminated. Sandbox is suspended")
            }
            Self::PodNotOwned => {
                (Truth::False, Reason::PodNotOwned, "Refused to delete pod because it is not owned by this sandbox")
            }
            Self::PodTerminating => (Truth::False, Reason::PodTerminating, "Pod is terminating. Sandbox is suspending"),
        };
        Verdict::new(ConditionType::Suspended, status, reason, message)
    }
}

/// The PodScheduled condition, present only while it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodScheduling {
    /// No Pod was seen, but looking failed.
    Unknown,
    /// Our Pod says nothing about it yet.
    NotReported,
    /// Our Pod's own condition.
    Mirrored { status: Truth, reason: String, message: String },
}

impl PodScheduling {
    /// What the condition says. A mirrored reason that a condition may not carry is replaced, since it would make
    /// every status write fail.
    pub fn verdict(self) -> Verdict {
        let type_ = ConditionType::PodScheduled;
        match self {
            Self::Unknown => Verdict::new(
                type_,
                Truth::Unknown,
                Reason::PodSchedulingUnknown,
                "Pod state is unknown. Pod scheduling cannot be determined",
            ),
            Self::NotReported => Verdict::new(
                type_,
                Truth::Unknown,
                Reason::PodSchedulingUnknown,
                "Pod has not reported a PodScheduled condition yet",
            ),
            Self::Mirrored { status, reason, message } => {
                let reason: Cow<'static, str> = if is_reason(&reason) {
                    reason.into()
                } else if reason.is_empty() && status == Truth::True {
                    Reason::PodScheduled.as_str().into()
                } else {
                    Reason::PodSchedulingUnknown.as_str().into()
                };
                Verdict { type_, status, reason, message: message.into() }
            }
        }
    }
}

/// The Ready condition of a Sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxReady {
    /// More than one Pod is ours; the text names them.
    MultiplePods(String),
    /// Something failed and will be tried again; the errors, in the order seen.
    ReconcilerError(Vec<String>),
    /// The API server refused a child for good; its text.
    InvalidConfiguration(String),
    /// Suspended, and a Pod is still there.
    Suspending,
    /// Suspended, and no Pod is there.
    Suspended,
    /// The Pod ended.
    Finished(PodOutcome),
    /// Pod and Service are as wanted.
    DependenciesReady(String),
    /// They are not yet.
    DependenciesNotReady(String),
    /// The shutdown time has passed.
    Expired,
}

impl SandboxReady {
    /// What the condition says.
    pub fn verdict(self) -> Verdict {
        let ready =
            |status, reason, message: Cow<'static, str>| Verdict::new(ConditionType::Ready, status, reason, message);
        match self {
            Self::MultiplePods(text) => ready(Truth::False, Reason::MultiplePods, text.into()),
            Self::ReconcilerError(errors) => {
                ready(Truth::False, Reason::ReconcilerError, format!("Error seen: {}", errors.join("\n")).into())
            }
            Self::InvalidConfiguration(text) => ready(Truth::False, Reason::InvalidConfiguration, text.into()),
            Self::Suspending => ready(Truth::False, Reason::SandboxSuspended, "Sandbox is suspending".into()),
            Self::Suspended => ready(Truth::False, Reason::SandboxSuspended, "Sandbox is suspended".into()),
            Self::Finished(outcome) => ready(Truth::False, outcome.reason(), outcome.message().into()),
            Self::DependenciesReady(text) => ready(Truth::True, Reason::DependenciesReady, text.into()),
            Self::DependenciesNotReady(text) => ready(Truth::False, Reason::DependenciesNotReady, text.into()),
            Self::Expired => ready(Truth::False, Reason::SandboxExpired, "Sandbox has expired".into()),
        }
    }
}
