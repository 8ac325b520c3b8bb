//! Errors about names that do not exist, with a suggestion where a similar name does.

use crate::args::nearest;
use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use agent_sandbox_client::ClientError;
use anyhow::Error;
use kube::{Api, Client, ResourceExt, api::ListParams};

/// Adds "did you mean" to an error about a name that does not exist.
pub(crate) async fn with_suggestion(client: &Client, namespace: &str, error: ClientError) -> Error {
    let ClientError::NotFound { name, .. } = &error else { return error.into() };
    let name = name.clone();
    let everything = ListParams::default();
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    let mut known: Vec<String> = Vec::new();
    known.extend(sandboxes.list(&everything).await.into_iter().flatten().map(|sandbox| sandbox.name_any()));
    known.extend(claims.list(&everything).await.into_iter().flatten().map(|claim| claim.name_any()));
    match nearest(&name, known.iter().map(String::as_str)).first() {
        Some(near) => anyhow::anyhow!("{error}\n  did you mean `{near}`?"),
        None => anyhow::anyhow!("{error}\n  `agent-sandbox list` shows what there is"),
    }
}
