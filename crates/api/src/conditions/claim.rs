//! The Ready condition of a claim, when it is not the Sandbox's own.

use std::borrow::Cow;

use super::{ConditionType, Reason, Truth, Verdict};

/// Why a claim is not Ready. A bound Sandbox's Ready is forwarded instead (`conditions::forward`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimReady {
    /// The template does not exist.
    TemplateNotFound { template: String },
    /// The pool does not exist.
    WarmPoolNotFound { pool: String },
    /// Candidates were lost to others; what happened.
    AdoptionConflict(String),
    /// The Sandbox was created, but is not yet seen.
    SandboxCreatePending,
    /// `additionalPodMetadata` is refused; why.
    InvalidMetadata(String),
    /// `env` is refused; why.
    EnvVarsInjectionRejected(String),
    /// `volumeClaimTemplates` are refused; why.
    VolumeClaimTemplatesError(String),
    /// Anything else that failed and will be tried again.
    ReconcilerError(String),
    /// The claim's time is over.
    Expired,
    /// The claim's time is over, and the Sandbox it names is not its own.
    ExpiredForeignSandbox { sandbox: String, claim: String },
    /// There is no Sandbox.
    SandboxMissing,
    /// The Sandbox's own time is over.
    SandboxExpired,
    /// The Sandbox says nothing about Ready yet.
    SandboxNotReady,
}

impl ClaimReady {
    /// The reason, without the text.
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

    /// What the condition says.
    pub fn verdict(self) -> Verdict {
        let reason = self.reason();
        let message: Cow<'static, str> = match self {
            Self::TemplateNotFound { template } => format!("SandboxTemplate \"{template}\" not found").into(),
            Self::WarmPoolNotFound { pool } => format!("SandboxWarmPool \"{pool}\" not found").into(),
            Self::AdoptionConflict(what) => {
                format!("adoption write conflict: {what}; the next pass retries from a converged view").into()
            }
            Self::SandboxCreatePending => "Sandbox already created; waiting for cache to converge".into(),
            Self::InvalidMetadata(text) | Self::EnvVarsInjectionRejected(text) | Self::VolumeClaimTemplatesError(text) => {
                text.into()
            }
            Self::ReconcilerError(error) => format!("Error seen: {error}").into(),
            Self::Expired => "Claim expired. Sandbox cleanup initiated.".into(),
            Self::ExpiredForeignSandbox { sandbox, claim } => format!(
                "Claim expired. sandbox not owned by this claim: sandbox \"{sandbox}\" is not owned by claim \"{claim}\"; deletion skipped."
            )
            .into(),
            Self::SandboxMissing => "Sandbox does not exist".into(),
            Self::SandboxExpired => "Underlying Sandbox resource has expired independently of the Claim.".into(),
            Self::SandboxNotReady => "Sandbox is not ready".into(),
        };
        Verdict::new(ConditionType::Ready, Truth::False, reason, message)
    }
}
