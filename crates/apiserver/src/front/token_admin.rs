//! Administration of tokens: listing and revoking those of ServiceAccounts, replacing the administrator's.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use agent_sandbox_telemetry::audit::Action;
use jiff::Timestamp;

use super::Front;
use super::audit::record_token_change;
use super::auth::token_registry::IssuedToken;
use super::listener::{Credentials, ListenerError, kubeconfig};

/// A kubeconfig that this server wrote.
pub(crate) struct WrittenKubeconfig {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
}

/// Why a token could not be revoked.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    #[error(
        "there is no token {0:?}; `agent-sandbox token list` shows the ids, and the token itself can be given instead"
    )]
    Unknown(String),
    #[error(transparent)]
    Save(#[from] ListenerError),
}

impl Front {
    pub(crate) fn credentials(&self) -> Credentials {
        self.credentials.lock().clone()
    }

    /// Notes a kubeconfig that has to follow the administrator's token.
    pub(crate) fn add_kubeconfig(&self, written: WrittenKubeconfig) {
        self.kubeconfigs.lock().push(written);
    }

    /// The tokens of ServiceAccounts that were requested and are valid.
    pub(crate) fn issued_tokens(&self) -> Vec<IssuedToken> {
        self.tokens.list(Timestamp::now())
    }

    /// Revokes a token, given by its id or by itself. Returns its id.
    pub(crate) fn revoke_token(&self, given: &str) -> Result<String, RevokeError> {
        let outcome = self.try_revoke_token(given);
        record_token_change(self.audit.as_ref(), Action::RevokeToken, outcome.as_ref().map(String::as_str));
        outcome
    }

    fn try_revoke_token(&self, given: &str) -> Result<String, RevokeError> {
        let now = Timestamp::now();
        let listed = self.tokens.list(now).into_iter().find(|token| token.id == given);
        let found = match listed {
            Some(token) => Some((token.id, token.expires)),
            None => self.authenticator.signer().verify(given, now).ok().map(|claims| (claims.id, claims.expires)),
        };
        let Some((id, expires)) = found else {
            // A token must not appear in a message.
            let shown = if given.len() <= 64 && !given.contains('.') { given } else { "(not shown)" };
            return Err(RevokeError::Unknown(shown.to_owned()));
        };
        self.tokens.revoke(&id, expires, now)?;
        Ok(id)
    }

    /// Replaces the administrator's token. The new one is on disk, in `file` and in every kubeconfig, before the old
    /// one is refused.
    pub(crate) fn rotate_admin_token(&self, file: Option<&Path>) -> Result<(), ListenerError> {
        let outcome = self.try_rotate_admin_token(file);
        record_token_change(self.audit.as_ref(), Action::RotateToken, outcome.as_ref().map(|()| ""));
        outcome
    }

    fn try_rotate_admin_token(&self, file: Option<&Path>) -> Result<(), ListenerError> {
        let mut credentials = self.credentials.lock();
        let next = credentials.with_new_admin_token();
        if let Some(path) = file {
            next.save(path)?;
        }
        let written = self.kubeconfigs.lock();
        let outcome = written.iter().try_for_each(|one| {
            let text = kubeconfig::render(&one.name, one.address, &next);
            kubeconfig::write(&one.path, &text)
        });
        // The file has the new token: it must also be the one in force, even if a kubeconfig could not be written.
        self.authenticator.set_admin_token(next.admin_token());
        *credentials = next;
        outcome
    }
}
