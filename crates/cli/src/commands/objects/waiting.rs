//! Waits for new and resumed sandboxes. What no waiting can mend ends the wait with its reason, and what was made is
//! deleted again unless it is to be kept.

use super::super::pod_warnings::{
    Subject, command_ended, crash, failed_pod_message, start_failure, with_latest_warning,
};
use crate::cluster::ClusterClient;
use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use agent_sandbox_client::{self as sdk, ClientError};
use anyhow::{Error, Result, anyhow};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Preconditions},
};
use std::{fmt::Debug, time::Duration};

/// Why a wait ended without a ready sandbox.
enum Failure {
    /// No waiting can mend it.
    Permanent(String),
    /// A longer wait might.
    Other(Error),
}

/// Waits for a Sandbox that was just created. A sandbox's own program stays; a command of the user's may end at once, and
/// its Pod is Ready for a moment all the same.
pub(super) async fn created(
    cluster: &ClusterClient,
    made: &Sandbox,
    limit: Duration,
    keep: bool,
    own_command: bool,
) -> Result<Sandbox> {
    let (name, uid) = (made.name_any(), made.uid());
    let ready = sdk::sandbox_ready(&cluster.client, &cluster.namespace, &name, limit);
    let mut outcome = until_ready(cluster, &name, uid, true, ready).await;
    if own_command
        && outcome.is_ok()
        && let Some(how) = command_ended(&cluster.client, &cluster.namespace, &name).await
    {
        outcome = Err(Failure::Permanent(format!("its command {how}")));
    }
    match outcome {
        Ok(sandbox) => Ok(sandbox),
        Err(Failure::Other(error)) => Err(error),
        Err(Failure::Permanent(reason)) => {
            let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
            Err(give_up(&api, "sandbox", &name, uid, keep, &reason).await)
        }
    }
}

/// Waits for a claim that was just created.
pub(super) async fn claimed(
    cluster: &ClusterClient,
    made: &SandboxClaim,
    limit: Duration,
    keep: bool,
) -> Result<SandboxClaim> {
    let (name, uid) = (made.name_any(), made.uid());
    let ready = sdk::claim_ready(&cluster.client, &cluster.namespace, &name, limit);
    match until_ready(cluster, &name, uid, false, ready).await {
        Ok(claim) => Ok(claim),
        Err(Failure::Other(error)) => Err(error),
        Err(Failure::Permanent(reason)) => {
            let api: Api<SandboxClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
            Err(give_up(&api, "claim", &name, uid, keep, &reason).await)
        }
    }
}

/// Waits for a Sandbox that was resumed. It is never deleted: it holds files.
pub(in crate::commands) async fn resumed(cluster: &ClusterClient, sandbox: &Sandbox, limit: Duration) -> Result<()> {
    let name = sandbox.name_any();
    let ready = sdk::sandbox_ready(&cluster.client, &cluster.namespace, &name, limit);
    match until_ready(cluster, &name, sandbox.uid(), false, ready).await {
        Ok(_) => Ok(()),
        Err(Failure::Other(error)) => Err(error),
        Err(Failure::Permanent(reason)) => Err(anyhow!("sandbox {name} cannot start: {reason}; its files are kept")),
    }
}

/// Waits for `ready`. On the local engine the node's warnings and crashes of the object's Pod end the wait too; other
/// clusters repeat failed starts, for example when a registry is busy.
async fn until_ready<T>(
    cluster: &ClusterClient,
    name: &str,
    uid: &str,
    is_new: bool,
    ready: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, Failure> {
    let (client, namespace) = (&cluster.client, cluster.namespace.as_str());
    let failure = async {
        if !cluster.is_local() {
            return std::future::pending().await;
        }
        let subject = Subject::OwnedBy(uid);
        tokio::select! {
            reason = start_failure(client, namespace, subject) => reason,
            reason = crash(client, namespace, uid) => reason,
        }
    };
    let outcome = tokio::select! {
        ready = ready => ready,
        reason = failure => return Err(Failure::Permanent(reason)),
    };
    match outcome {
        // A command that ends and is started again can be ready in between.
        Ok(_) if is_new && cluster.is_local() && restarted(cluster, uid).await => {
            Err(Failure::Permanent(crash(client, namespace, uid).await))
        }
        Ok(object) => Ok(object),
        Err(ClientError::Failed { reason, message, .. }) => {
            // The node's words say more than the controller's summary of a failed Pod.
            let message = match reason.as_str() {
                "PodFailed" => failed_pod_message(client, namespace, name).await.unwrap_or(message),
                _ => message,
            };
            Err(Failure::Permanent(format!("{reason}: {message}")))
        }
        Err(error) => Err(Failure::Other(with_latest_warning(client, namespace, name, error).await)),
    }
}

/// Whether a container of the new Sandbox's Pod has already been started again.
async fn restarted(cluster: &ClusterClient, uid: &str) -> bool {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let Ok(found) = pods.list(&ListParams::default()).await else { return false };
    let mut owned = found.iter().filter(|pod| pod.owner_references().iter().any(|owner| owner.uid == uid));
    owned.any(|pod| {
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        statuses.into_iter().any(|status| status.restart_count > 0)
    })
}

/// The error about an object that cannot become ready. Deletes the object unless it is to be kept.
async fn give_up<K>(api: &Api<K>, kind: &str, name: &str, uid: &str, keep: bool, reason: &str) -> Error
where
    K: Clone + Debug + serde::de::DeserializeOwned,
{
    if keep {
        return anyhow!("{kind} {name} cannot start: {reason}\n  it is kept: agent-sandbox get {name}");
    }
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    match api.delete(name, &DeleteParams::background().preconditions(preconditions)).await {
        Ok(_) => anyhow!("{kind} {name} cannot start, and was deleted again: {reason}"),
        Err(error) => Error::new(error).context(format!("{kind} {name} cannot start ({reason}), nor be deleted")),
    }
}
