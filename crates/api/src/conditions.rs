//! Condition types, reasons and messages: wire values that dashboards and SDKs match byte for byte.
//!
//! A condition is built from a [`DesiredCondition`]; each kind of condition has one enum whose variants are its only
//! constructors ([`SandboxReady`], [`SandboxSuspended`], [`ClaimReady`], …), so a reason cannot be paired with the
//! wrong status or text.

mod claim;
mod sandbox;
#[cfg(test)]
mod tests;
mod upsert;

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

pub use claim::ClaimReady;
pub use sandbox::{IdleSuspend, PodOutcome, PodScheduling, SandboxReady, SandboxSuspended, VolumesPending};
pub use upsert::{find, forward, is_reason, remove, sort_by_type, truncated_message, upsert};

/// Condition types we write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionType {
    Suspended,
    Finished,
    PodScheduled,
    Ready,
    /// Ours; present only while a running Sandbox's template names volumes that its Pod does not have.
    VolumesPending,
    /// Ours; present only on a Sandbox with an idle time: whether it is suspended because it was idle.
    IdleSuspend,
}

impl ConditionType {
    /// The wire value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Suspended => "Suspended",
            Self::Finished => "Finished",
            Self::PodScheduled => "PodScheduled",
            Self::Ready => "Ready",
            Self::VolumesPending => "VolumesPending",
            Self::IdleSuspend => "IdleSuspend",
        }
    }
}

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    /// The wire value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    /// Parses the wire value; any other text is `Unknown`.
    pub fn from_wire(value: &str) -> Self {
        match value {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

/// Every reason we write or react to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    // Suspended
    NotSuspended,
    PodStateUnknown,
    PodTerminated,
    PodNotOwned,
    PodTerminating,
    // Finished, and Ready of a finished Sandbox
    PodSucceeded,
    PodFailed,
    // PodScheduled, unless mirrored
    PodScheduled,
    PodSchedulingUnknown,
    // VolumesPending
    AttachedAtResume,
    DetachedAtResume,
    ChangedAtResume,
    // IdleSuspend
    Idle,
    NotIdle,
    InvalidIdlePolicy,
    // Ready of a Sandbox
    MultiplePods,
    ReconcilerError,
    InvalidConfiguration,
    SandboxSuspended,
    DependenciesReady,
    DependenciesNotReady,
    SandboxExpired,
    // Ready of a claim
    TemplateNotFound,
    WarmPoolNotFound,
    AdoptionConflict,
    SandboxCreatePending,
    InvalidMetadata,
    EnvVarsInjectionRejected,
    VolumeClaimTemplatesError,
    ClaimExpired,
    SandboxMissing,
    SandboxNotReady,
}

impl Reason {
    /// The wire value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSuspended => "NotSuspended",
            Self::PodStateUnknown => "PodStateUnknown",
            Self::PodTerminated => "PodTerminated",
            Self::PodNotOwned => "PodNotOwned",
            Self::PodTerminating => "PodTerminating",
            Self::PodSucceeded => "PodSucceeded",
            Self::PodFailed => "PodFailed",
            Self::PodScheduled => "PodScheduled",
            Self::PodSchedulingUnknown => "PodSchedulingUnknown",
            Self::AttachedAtResume => "AttachedAtResume",
            Self::DetachedAtResume => "DetachedAtResume",
            Self::ChangedAtResume => "ChangedAtResume",
            Self::Idle => "Idle",
            Self::NotIdle => "NotIdle",
            Self::InvalidIdlePolicy => "InvalidIdlePolicy",
            Self::MultiplePods => "MultiplePods",
            Self::ReconcilerError => "ReconcilerError",
            Self::InvalidConfiguration => "InvalidConfiguration",
            Self::SandboxSuspended => "SandboxSuspended",
            Self::DependenciesReady => "DependenciesReady",
            Self::DependenciesNotReady => "DependenciesNotReady",
            Self::SandboxExpired => "SandboxExpired",
            Self::TemplateNotFound => "TemplateNotFound",
            Self::WarmPoolNotFound => "WarmPoolNotFound",
            Self::AdoptionConflict => "AdoptionConflict",
            Self::SandboxCreatePending => "SandboxCreatePending",
            Self::InvalidMetadata => "InvalidMetadata",
            Self::EnvVarsInjectionRejected => "EnvVarsInjectionRejected",
            Self::VolumeClaimTemplatesError => "VolumeClaimTemplatesError",
            Self::ClaimExpired => "ClaimExpired",
            Self::SandboxMissing => "SandboxMissing",
            Self::SandboxNotReady => "SandboxNotReady",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A condition to be written, without transition time and observed generation, which [`upsert()`] adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCondition {
    pub type_: ConditionType,
    pub status: ConditionStatus,
    /// A [`Reason`], or a reason mirrored from a Pod.
    pub reason: Cow<'static, str>,
    pub message: Cow<'static, str>,
}

impl DesiredCondition {
    fn new(
        type_: ConditionType,
        status: ConditionStatus,
        reason: Reason,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { type_, status, reason: Cow::Borrowed(reason.as_str()), message: message.into() }
    }
}

/// True when the condition exists with status `True`.
pub fn is_true(condition: Option<&Condition>) -> bool {
    condition.is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
}
