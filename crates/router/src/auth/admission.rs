//! What a request was admitted with. While its streams are open it is checked again and again, as at their start: they
//! end soon after the credential is revoked, replaced or expired, or after its owner has lost the right.

use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_protocol::router_headers::SandboxRequest;
use tokio::time::Instant;

use super::{Authorizer, Caller, Identity};
use crate::error::RouterError;
use crate::resolve::index::PodIndex;

/// Interval between two checks of an open stream. They read the caches of reviews, which ask the API when an answer has
/// expired.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time without an answer of the API after which open streams end. Longer than the restart of a control plane, which
/// would interrupt every command otherwise; new requests are refused meanwhile.
const UNANSWERED: Duration = Duration::from_secs(300);

/// What a request to a sandbox was admitted with.
pub(crate) struct Admission {
    credential: Credential,
    /// Without the address and UID that the client expects: the sandbox's Pod may be unready for a moment.
    sandbox: SandboxRequest,
    /// The Sandbox's Pod, for rights that are limited to it by name.
    pod: Option<Arc<str>>,
}

/// Who proved to be whom.
pub(crate) enum Credential {
    /// A token of one of the modes.
    Token(Box<str>),
    /// A user that the API server authenticated for the whole connection.
    User(Arc<Caller>),
}

impl Admission {
    pub(crate) fn new(credential: Credential, sandbox: &SandboxRequest, index: &PodIndex) -> Self {
        let sandbox = SandboxRequest { pod_ip: None, uid: None, ..sandbox.clone() };
        let live = index.by_name(sandbox.namespace.as_str(), sandbox.id.as_str());
        Self { credential, sandbox, pod: live.map(|live| Arc::clone(&live.pod)) }
    }
}

impl Authorizer {
    /// Completes when the request would not be admitted any more, with the reason, or when the API gives no answer for
    /// too long.
    pub(crate) async fn ended(&self, admission: &Admission) -> RouterError {
        let mut answered = Instant::now();
        loop {
            tokio::time::sleep(INTERVAL).await;
            match self.admit_again(admission).await {
                Ok(()) => answered = Instant::now(),
                Err(error) if ends(&error, answered.elapsed()) => return error,
                Err(_) => {}
            }
        }
    }

    pub(super) async fn admit_again(&self, admission: &Admission) -> Result<(), RouterError> {
        let identity = match &admission.credential {
            Credential::Token(token) => self.authenticate(Some(token)).await?,
            Credential::User(caller) => Identity::User(Arc::clone(caller)),
        };
        identity.is_for(&admission.sandbox)?;
        self.check_access(&identity, &admission.sandbox, admission.pod.as_deref()).await
    }
}

/// Whether open streams end with this error of a check, when the last one without an error was so long ago.
pub(super) fn ends(error: &RouterError, since_answer: Duration) -> bool {
    let unanswered = matches!(error, RouterError::TokenReview | RouterError::AccessReview);
    !unanswered || since_answer > UNANSWERED
}
