//! Requests about tokens of the engine's API, through the control socket, which only the owner of the data folder can open.

use crate::{DataDir, EngineReply};
use agent_sandbox_apiserver::ApiServer;
use agent_sandbox_node::runtime::chain;
use serde::{Deserialize, Serialize};

/// A request about tokens.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub enum TokenRequest {
    /// Valid tokens of ServiceAccounts.
    ListTokens,
    /// Ends a token of a ServiceAccount, given by its id or by itself.
    RevokeToken { token: String },
    /// Replaces the administrator's token.
    RotateToken,
}

/// The parts of an engine that these requests are carried out with.
#[derive(Clone)]
pub(crate) struct TokenContext {
    pub(crate) api: ApiServer,
    pub(crate) data: DataDir,
}

impl TokenContext {
    /// Carries out a request; the error is a message for the user. Files are written, so that the caller may have to
    /// wait for the disk.
    pub(crate) fn handle(&self, request: TokenRequest) -> Result<EngineReply, String> {
        match request {
            TokenRequest::ListTokens => Ok(EngineReply::Tokens(self.api.issued_tokens())),
            TokenRequest::RevokeToken { token } => {
                let id = self.api.revoke_token(&token).map_err(|error| chain(&error))?;
                Ok(EngineReply::Revoked { id })
            }
            TokenRequest::RotateToken => {
                let rotated = self.api.rotate_admin_token();
                self.data.copy_kubeconfig();
                rotated.map_err(|error| chain(&error))?;
                Ok(EngineReply::Rotated)
            }
        }
    }
}
