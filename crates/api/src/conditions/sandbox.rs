//! Conditions of a Sandbox.

use std::borrow::Cow;

use super::{ConditionStatus, ConditionType, DesiredCondition, Reason, is_reason};

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
    pub fn finished(self) -> DesiredCondition {
        DesiredCondition::new(ConditionType::Finished, ConditionStatus::True, self.reason(), self.message())
    }
}

/// The Suspended condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxSuspended {
    /// The Sandbox's operating mode is `Running`.
    NotSuspended,
    /// No Pod was found, but the lookup failed.
    PodStateUnknown,
    /// The Pod does not exist any more.
    PodTerminated,
    /// A Pod that the Sandbox does not own has the name.
    PodNotOwned,
    /// The Sandbox's Pod still exists.
    PodTerminating,
}

impl SandboxSuspended {
    /// The condition to write.
    pub fn desired_condition(self) -> DesiredCondition {
        let (status, reason, message) = match self {
            Self::NotSuspended => (ConditionStatus::False, Reason::NotSuspended, "Sandbox is not suspended"),
            Self::PodStateUnknown => (
                ConditionStatus::Unknown,
                Reason::PodStateUnknown,
                "Pod state is unknown. Sandbox suspension cannot be confirmed",
            ),
            Self::PodTerminated => {
                (ConditionStatus::True, Reason::PodTerminated, "Pod has been terminated. Sandbox is suspended")
            }
            Self::PodNotOwned => (
                ConditionStatus::False,
                Reason::PodNotOwned,
                "Refused to delete pod because it is not owned by this sandbox",
            ),
            Self::PodTerminating => {
                (ConditionStatus::False, Reason::PodTerminating, "Pod is terminating. Sandbox is suspending")
            }
        };
        DesiredCondition::new(ConditionType::Suspended, status, reason, message)
    }
}

/// The PodScheduled condition, present only while it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodScheduling {
    /// No Pod was found, but the lookup failed.
    Unknown,
    /// The Sandbox's Pod has no PodScheduled condition yet.
    NotReported,
    /// The PodScheduled condition of the Sandbox's Pod.
    Mirrored { status: ConditionStatus, reason: String, message: String },
}

impl PodScheduling {
    /// The condition to write. A mirrored reason that the condition schema does not admit is replaced, since it would
    /// make every status write fail.
    pub fn desired_condition(self) -> DesiredCondition {
        let type_ = ConditionType::PodScheduled;
        match self {
            Self::Unknown => DesiredCondition::new(
                type_,
                ConditionStatus::Unknown,
                Reason::PodSchedulingUnknown,
                "Pod state is unknown. Pod scheduling cannot be determined",
            ),
            Self::NotReported => DesiredCondition::new(
                type_,
                ConditionStatus::Unknown,
                Reason::PodSchedulingUnknown,
                "Pod has not reported a PodScheduled condition yet",
            ),
            Self::Mirrored { status, reason, message } => {
                let reason: Cow<'static, str> = if is_reason(&reason) {
                    reason.into()
                } else if reason.is_empty() && status == ConditionStatus::True {
                    Reason::PodScheduled.as_str().into()
                } else {
                    Reason::PodSchedulingUnknown.as_str().into()
                };
                DesiredCondition { type_, status, reason, message: message.into() }
            }
        }
    }
}

/// The VolumesPending condition, present only while it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumesPending {
    /// The template names these PersistentVolumeClaims, and the running Pod, whose volumes cannot change, has none of
    /// them.
    Attach(Vec<String>),
    /// The running Pod has these PersistentVolumeClaims, and the template names none of them any more.
    Detach(Vec<String>),
    /// The template names other PersistentVolumeClaims than the running Pod has.
    Change { attach: Vec<String>, detach: Vec<String> },
}

impl VolumesPending {
    /// What is pending, from the claims that the Pod lacks and those that it has too many; `None` if nothing is.
    pub fn of(attach: Vec<String>, detach: Vec<String>) -> Option<Self> {
        match (attach.is_empty(), detach.is_empty()) {
            (true, true) => None,
            (false, true) => Some(Self::Attach(attach)),
            (true, false) => Some(Self::Detach(detach)),
            (false, false) => Some(Self::Change { attach, detach }),
        }
    }

    /// The condition to write.
    pub fn desired_condition(self) -> DesiredCondition {
        let (reason, what) = match self {
            Self::Attach(claims) => {
                (Reason::AttachedAtResume, format!("Attached when the Sandbox is resumed: {}", claims.join(", ")))
            }
            Self::Detach(claims) => {
                (Reason::DetachedAtResume, format!("Detached when the Sandbox is resumed: {}", claims.join(", ")))
            }
            Self::Change { attach, detach } => (
                Reason::ChangedAtResume,
                format!(
                    "When the Sandbox is resumed, attached: {}; detached: {}",
                    attach.join(", "),
                    detach.join(", ")
                ),
            ),
        };
        let message = format!("A running Pod keeps its volumes. {what}");
        DesiredCondition::new(ConditionType::VolumesPending, ConditionStatus::True, reason, message)
    }
}

/// The IdleSuspend condition, present only on a Sandbox with an idle time, or with one that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdleSuspend {
    /// Not suspended, or suspended by a user; the idle time.
    NotIdle { after: String },
    /// Suspended because it was idle; whether a request wakes it.
    Idle { after: String, wakes: bool },
    /// An annotation is invalid, so the Sandbox is never suspended for being idle.
    Invalid(String),
}

impl IdleSuspend {
    /// The condition to write.
    pub fn desired_condition(self) -> DesiredCondition {
        let (status, reason, message) = match self {
            Self::NotIdle { after } => {
                (ConditionStatus::False, Reason::NotIdle, format!("Suspended after {after} without activity"))
            }
            Self::Idle { after, wakes } => {
                let next = if wakes { "A request wakes it" } else { "Requests do not wake it" };
                (ConditionStatus::True, Reason::Idle, format!("Suspended after {after} without activity. {next}"))
            }
            Self::Invalid(error) => (ConditionStatus::False, Reason::InvalidIdlePolicy, error),
        };
        DesiredCondition::new(ConditionType::IdleSuspend, status, reason, message)
    }
}

/// The Ready condition of a Sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxReady {
    /// The Sandbox owns more than one Pod; the text names them.
    MultiplePods(String),
    /// Reconciling failed and is retried; the errors, in the order they occurred.
    ReconcilerError(Vec<String>),
    /// The API server rejected a child as invalid, so a retry cannot succeed; its message.
    InvalidConfiguration(String),
    /// Suspended, and a Pod still exists.
    Suspending,
    /// Suspended, and no Pod exists.
    Suspended,
    /// The Pod ended.
    Finished(PodOutcome),
    /// Pod and Service are ready.
    DependenciesReady(String),
    /// Pod or Service are not ready yet.
    DependenciesNotReady(String),
    /// The shutdown time has passed.
    Expired,
}

impl SandboxReady {
    /// The condition to write.
    pub fn desired_condition(self) -> DesiredCondition {
        let ready = |status, reason, message: Cow<'static, str>| {
            DesiredCondition::new(ConditionType::Ready, status, reason, message)
        };
        match self {
            Self::MultiplePods(text) => ready(ConditionStatus::False, Reason::MultiplePods, text.into()),
            Self::ReconcilerError(errors) => ready(
                ConditionStatus::False,
                Reason::ReconcilerError,
                format!("Error seen: {}", errors.join("\n")).into(),
            ),
            Self::InvalidConfiguration(text) => {
                ready(ConditionStatus::False, Reason::InvalidConfiguration, text.into())
            }
            Self::Suspending => ready(ConditionStatus::False, Reason::SandboxSuspended, "Sandbox is suspending".into()),
            Self::Suspended => ready(ConditionStatus::False, Reason::SandboxSuspended, "Sandbox is suspended".into()),
            Self::Finished(outcome) => ready(ConditionStatus::False, outcome.reason(), outcome.message().into()),
            Self::DependenciesReady(text) => ready(ConditionStatus::True, Reason::DependenciesReady, text.into()),
            Self::DependenciesNotReady(text) => {
                ready(ConditionStatus::False, Reason::DependenciesNotReady, text.into())
            }
            Self::Expired => ready(ConditionStatus::False, Reason::SandboxExpired, "Sandbox has expired".into()),
        }
    }
}
