//! Suspend, resume and delete, by the name of a Sandbox or of a claim.

use crate::{ClientError, error::is_not_found, lookup};
use agent_sandbox_api::{
    keys::annotations,
    sleep,
    v1beta1::{OperatingMode, Sandbox, SandboxClaim},
};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use std::time::Duration;

/// The object that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// A claim; its Sandbox is deleted with it.
    Claim { uid: Option<String> },
    /// A Sandbox without a claim.
    Sandbox { uid: Option<String> },
}

/// Requests that a Sandbox stops. Its files and its name are kept.
pub async fn suspend(client: &Client, namespace: &str, name: &str) -> Result<Sandbox, ClientError> {
    set_mode(client, namespace, name, OperatingMode::Suspended).await
}

/// Requests that a suspended Sandbox runs again.
pub async fn resume(client: &Client, namespace: &str, name: &str) -> Result<Sandbox, ClientError> {
    set_mode(client, namespace, name, OperatingMode::Running).await
}

async fn set_mode(client: &Client, namespace: &str, name: &str, mode: OperatingMode) -> Result<Sandbox, ClientError> {
    let sandbox = lookup::find(client, namespace, name).await?.sandbox;
    let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    // What a user decides is not the effect of idleness, nor undone by a request from before.
    let forgotten = json!({annotations::SUSPENDED_BY: null, annotations::WAKE_REQUESTED_AT: null});
    let patch = json!({"metadata": {"uid": sandbox.uid(), "annotations": forgotten}, "spec": {"operatingMode": mode}});
    let operation = format!("change the mode of `{name}`");
    let patched = api.patch(&sandbox.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map_err(ClientError::api(operation))
}

/// Records activity of a Sandbox with an idle time, which starts again; with `time`, the Sandbox is not suspended for
/// being idle before that time has passed.
pub async fn keep_alive(
    client: &Client,
    namespace: &str,
    name: &str,
    time: Option<Duration>,
) -> Result<Sandbox, ClientError> {
    let sandbox = lookup::find(client, namespace, name).await?.sandbox;
    let (mode, annotation) = (sandbox.operating_mode(), |key| sandbox.annotation(key));
    if mode == OperatingMode::Suspended {
        return Err(ClientError::Suspended { name: sandbox.name_any() });
    }
    if sleep::IdlePolicy::read(annotation).map_err(|error| ClientError::Invalid(error.to_string()))?.is_none() {
        return Err(ClientError::Invalid(format!(
            "`{name}` has no idle time and is never suspended for being idle; set annotation {}, for example to 15m",
            annotations::IDLE_TIMEOUT
        )));
    }
    let mut changes = json!({annotations::LAST_ACTIVITY_AT: sleep::format_time(Timestamp::now())});
    if let Some(time) = time {
        changes[annotations::KEEP_AWAKE_UNTIL] = sleep::format_time(crate::client::from_now(time).0).into();
    }
    let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let patch = Patch::Merge(json!({"metadata": {"uid": sandbox.uid(), "annotations": changes}}));
    let patched = api.patch(&sandbox.name_any(), &PatchParams::default(), &patch).await;
    patched.map_err(ClientError::api(format!("keep `{name}` awake")))
}

/// Deletes the claim of that name, otherwise the Sandbox of that name.
pub async fn delete(client: &Client, namespace: &str, name: &str) -> Result<Deleted, ClientError> {
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let operation = || format!("delete `{name}`");
    let background = DeleteParams::background();
    match claims.delete(name, &background).await {
        Ok(left) => return Ok(Deleted::Claim { uid: left.left().map(|claim| claim.uid().to_owned()) }),
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(ClientError::api(operation())(error)),
    }
    match sandboxes.delete(name, &background).await {
        Ok(left) => Ok(Deleted::Sandbox { uid: left.left().map(|sandbox| sandbox.uid().to_owned()) }),
        Err(error) if is_not_found(&error) => Err(ClientError::NotFound {
            kind: "sandbox or claim",
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        Err(error) => Err(ClientError::api(operation())(error)),
    }
}

/// Sets the time after which the claim, or without one the Sandbox, is deleted.
pub(crate) async fn expire_after(
    client: &Client,
    namespace: &str,
    sandbox: &str,
    claim: Option<&str>,
    time: std::time::Duration,
) -> Result<(), ClientError> {
    let time = crate::client::from_now(time);
    let params = PatchParams::default();
    let operation = || format!("set when `{sandbox}` expires");
    let sent = match claim {
        Some(claim) => {
            let api: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
            let lifecycle = json!({"shutdownTime": time, "shutdownPolicy": "Delete"});
            let patch = Patch::Merge(json!({"spec": {"lifecycle": lifecycle}}));
            api.patch(claim, &params, &patch).await.map(drop)
        }
        None => {
            let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
            let patch = Patch::Merge(json!({"spec": {"shutdownTime": time, "shutdownPolicy": "Delete"}}));
            api.patch(sandbox, &params, &patch).await.map(drop)
        }
    };
    sent.map_err(ClientError::api(operation()))
}
