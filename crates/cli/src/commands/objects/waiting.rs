//! Waits for new and resumed sandboxes. What no waiting can mend ends the wait with its reason, and what was made is
//! deleted again unless it is to be kept.

use crate::cluster::ClusterClient;
use agent_sandbox_api::{
    keys,
    v1beta1::{Sandbox, SandboxClaim},
};
use agent_sandbox_client::{self as sdk, ClientError};
use anyhow::{Error, Result, anyhow};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Preconditions},
};
use std::{fmt::Debug, time::Duration};

/// Waits for a Sandbox that was just created.
pub(super) async fn created(cluster: &ClusterClient, made: &Sandbox, limit: Duration, keep: bool) -> Result<Sandbox> {
    match sdk::new_sandbox_ready(&cluster.client, &cluster.namespace, made, limit).await {
        Ok(sandbox) => Ok(sandbox),
        Err(error) if runs_once(made) && has_ended(&error) => Err(error.into()),
        Err(error) => {
            let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
            Err(give_up(&api, "sandbox", &made.name_any(), made.uid(), keep, error).await)
        }
    }
}

fn runs_once(sandbox: &Sandbox) -> bool {
    sandbox.annotation(keys::annotations::SHUTDOWN_WHEN_FINISHED).is_some()
}

fn has_ended(error: &ClientError) -> bool {
    match error {
        ClientError::Deleted { .. } => true,
        ClientError::Failed { reason, .. } => reason == "PodSucceeded" || reason == "SandboxExpired",
        _ => false,
    }
}

/// Whether a Sandbox that runs once had ended before it was seen to be ready.
pub(super) fn is_over(error: &Error) -> bool {
    error.downcast_ref().is_some_and(has_ended)
}

/// Waits for a claim that was just created.
pub(super) async fn claimed(
    cluster: &ClusterClient,
    made: &SandboxClaim,
    limit: Duration,
    keep: bool,
) -> Result<SandboxClaim> {
    let name = made.name_any();
    match sdk::claim_ready(&cluster.client, &cluster.namespace, &name, limit).await {
        Ok(claim) => Ok(claim),
        Err(error) => {
            let api: Api<SandboxClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
            Err(give_up(&api, "claim", &name, made.uid(), keep, error).await)
        }
    }
}

/// Waits for a Sandbox that was resumed. It is never deleted: it holds files.
pub(in crate::commands) async fn resumed(cluster: &ClusterClient, sandbox: &Sandbox, limit: Duration) -> Result<()> {
    let name = sandbox.name_any();
    match sdk::sandbox_ready(&cluster.client, &cluster.namespace, &name, limit).await {
        Ok(_) => Ok(()),
        Err(error) => match permanent(&error) {
            Some(reason) => Err(anyhow!("sandbox {name} cannot start: {reason}; its files are kept")),
            None => Err(error.into()),
        },
    }
}

/// The reason of a failure that no waiting can mend.
fn permanent(error: &ClientError) -> Option<String> {
    match error {
        ClientError::Failed { reason, message, .. } => Some(format!("{reason}: {message}")),
        ClientError::CannotStart { reason, .. } => Some(reason.clone()),
        _ => None,
    }
}

/// The error about an object that did not become ready. If it cannot, deletes it unless it is to be kept.
async fn give_up<K>(api: &Api<K>, kind: &str, name: &str, uid: &str, keep: bool, error: ClientError) -> Error
where
    K: Clone + Debug + serde::de::DeserializeOwned,
{
    let Some(reason) = permanent(&error) else { return error.into() };
    if keep {
        return anyhow!("{kind} {name} cannot start: {reason}\n  it is kept: agent-sandbox get {name}");
    }
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    match api.delete(name, &DeleteParams::background().preconditions(preconditions)).await {
        Ok(_) => anyhow!("{kind} {name} cannot start, and was deleted again: {reason}"),
        Err(error) => Error::new(error).context(format!("{kind} {name} cannot start ({reason}), nor be deleted")),
    }
}
