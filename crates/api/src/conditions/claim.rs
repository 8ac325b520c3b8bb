//! The Ready condition of a claim, when it is not forwarded from the Sandbox.

use std::borrow::Cow;

use super::{ConditionStatus, ConditionType, DesiredCondition, Reason};

/// Why a claim is not Ready. A bound Sandbox's Ready is forwarded instead (`conditions::forward`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimReady {
    /// The template does not exist.
    TemplateNotFound { template: String },
    /// The pool does not exist.
    WarmPoolNotFound { pool: String },
    /// Other claims adopted the candidates first; the text says what happened.
    AdoptionConflict(String),
    /// The Sandbox was created, but is not in the cache yet.
    SandboxCreatePending,
    /// `additionalPodMetadata` is rejected; the text says why.
    InvalidMetadata(String),
    /// `env` is rejected; the text says why.
    EnvVarsInjectionRejected(String),
    /// `volumeClaimTemplates` are rejected; the text says why.
    VolumeClaimTemplatesError(String),
    /// Any other failure; the controller retries.
    ReconcilerError(String),
    /// The claim has expired.
    Expired,
    /// The claim has expired, and the Sandbox in its status is not owned by it.
    ExpiredForeignSandbox { sandbox: String, claim: String },
    /// The claim has no Sandbox.
    SandboxMissing,
    /// The Sandbox itself has expired.
    SandboxExpired,
    /// The Sandbox has no Ready condition yet.
    SandboxNotReady,
}

impl ClaimReady {
    /// The reason, without the message.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::TemplateNotFound { .. } => Reason::TemplateNotFound,
            Self::WarmPoolNotFound { .. } => Reason::WarmPoolNotFound,
            Self::AdoptionConflict(_) => Reason::AdoptionConflict,
            Self::SandboxCreatePending => Reason::SandboxCreatePending,
            Self::InvalidMetadata(_) => Reason::InvalidMetadata,
            Self::EnvVarsInjectionRejected(_) => Reason::EnvVarsInjectionRejected,
            Self::VolumeClaimTemplatesError(_) => Reason::VolumeClaimTemplatesError,
            Self::ReconcilerError(_) => Reason::ReconcilerError,
            Self::Expired | Self::ExpiredForeignSandbox { .. } => Reason::ClaimExpired,
            Self::SandboxMissing => Reason::SandboxMissing,
            Self::SandboxExpired => Reason::SandboxExpired,
            Self::SandboxNotReady => Reason::SandboxNotReady,
        }
    }

    /// The condition to write.
    pub fn desired_condition(self) -> DesiredCondition {
        let reason = self.reason();
        let message: Cow<'static, str> = match self {
            Self::TemplateNotFound { template } => format!("SandboxTemplate \"{template}\" not found").into(),
            Self::WarmPoolNotFound { pool } => format!("SandboxWarmPool \"{pool}\" not found").into(),
            Self::AdoptionConflict(what) => {
                format!("adoption write conflict: {what}; the next pass retries from a converged view").into()
            }
            Self::SandboxCreatePending => "Sandbox already created; waiting for cache to converge".into(),
            Self::InvalidMetadata(text)
            | Self::EnvVarsInjectionRejected(text)
            | Self::VolumeClaimTemplatesError(text) => text.into(),
            Self::ReconcilerError(error) => format!("Error seen: {error}").into(),
            Self::Expired => "Claim expired. Sandbox cleanup initiated.".into(),
            Self::ExpiredForeignSandbox { sandbox, claim } => format!(
                "Claim expired. sandbox not owned by this claim: sandbox \"{sandbox}\" is not owned by claim \
                 \"{claim}\"; deletion skipped."
            )
            .into(),
            Self::SandboxMissing => "Sandbox does not exist".into(),
            Self::SandboxExpired => "Underlying Sandbox resource has expired independently of the Claim.".into(),
            Self::SandboxNotReady => "Sandbox is not ready".into(),
        };
        DesiredCondition::new(ConditionType::Ready, ConditionStatus::False, reason, message)
    }
}
