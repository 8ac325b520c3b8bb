//! Looks up the Sandbox, its claim and its Pod by a user-supplied name.

use crate::{ClientError, error::is_not_found};
use agent_sandbox_api::{
    keys::annotations,
    sleep,
    v1beta1::{OperatingMode, Sandbox, SandboxClaim},
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// A Sandbox that was found by its own name or by that of its claim.
#[derive(Clone, Debug)]
pub struct Found {
    pub sandbox: Sandbox,
    /// Set if the name was that of a claim.
    pub claim: Option<SandboxClaim>,
}

/// Finds a Sandbox by its own name, or by the name of a claim that is bound to one.
pub async fn find(client: &Client, namespace: &str, name: &str) -> Result<Found, ClientError> {
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    let operation = || format!("look up `{name}`");
    let claim = match claims.get_opt(name).await {
        Ok(claim) => claim,
        // A cluster without the extensions API group has no claims.
        Err(error) if is_not_found(&error) => None,
        Err(error) => return Err(ClientError::api(operation())(error)),
    };
    let bound = claim.as_ref().and_then(|claim| claim.bound_sandbox()).map(str::to_owned);
    let wanted = match (&claim, &bound) {
        (Some(_), Some(bound)) => bound.as_str(),
        (Some(claim), None) => {
            let last = crate::wait::describe(claim.conditions());
            return Err(ClientError::NotRunning { name: name.to_owned(), last });
        }
        (None, _) => name,
    };
    match sandboxes.get_opt(wanted).await.map_err(ClientError::api(operation()))? {
        Some(sandbox) => Ok(Found { sandbox, claim }),
        None => {
            Err(ClientError::NotFound { kind: "sandbox", namespace: namespace.to_owned(), name: wanted.to_owned() })
        }
    }
}

/// The running Pod of a Sandbox, which is woken first if it is suspended and requests wake it.
pub async fn awake_pod(client: &Client, sandbox: &Sandbox) -> Result<Pod, ClientError> {
    let wakes = sleep::wakes_on_request(|key| sandbox.annotation(key));
    if sandbox.operating_mode() == OperatingMode::Running || !wakes {
        return running_pod(client, sandbox).await;
    }
    let (name, namespace) = (sandbox.name_any(), sandbox.namespace());
    let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let metadata = json!({
        "uid": sandbox.uid(),
        "resourceVersion": sandbox.resource_version(),
        "annotations": {annotations::WAKE_REQUESTED_AT: sleep::format_time(Timestamp::now())},
    });
    let patch = Patch::Merge(json!({"metadata": metadata}));
    let generation = match api.patch(&name, &PatchParams::default(), &patch).await {
        // The mode has not changed yet; the controller changes it, and that is another generation.
        Ok(patched) => patched.metadata.generation,
        // It changed meanwhile, perhaps because another request woke it.
        Err(kube::Error::Api(status)) if status.code == 409 => None,
        Err(error) => return Err(ClientError::api(format!("wake `{name}`"))(error)),
    };
    let awake = crate::wait::sandbox_awake(client, namespace, &name, generation, crate::READY_TIMEOUT).await?;
    running_pod(client, &awake).await
}

/// The running Pod of a Sandbox.
pub async fn running_pod(client: &Client, sandbox: &Sandbox) -> Result<Pod, ClientError> {
    let name = sandbox.name_any();
    if sandbox.operating_mode() == OperatingMode::Suspended {
        return Err(ClientError::Suspended { name });
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), sandbox.namespace());
    let annotated = sandbox.annotation(annotations::POD_NAME).filter(|pod| !pod.is_empty());
    let pod_name = annotated.unwrap_or(&name).to_owned();
    let pod = pods.get_opt(&pod_name).await.map_err(ClientError::api(format!("look up the Pod of `{name}`")))?;
    let phase = pod.as_ref().and_then(|pod| pod.status.as_ref()).and_then(|status| status.phase.clone());
    match (pod, phase.as_deref()) {
        (Some(pod), Some("Running")) => Ok(pod),
        (Some(pod), phase) => {
            let why = crate::start_failure::pod_problem(client, sandbox.namespace(), &pod).await;
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let last = format!("Pod {pod_name} is {}{why}", phase.unwrap_or("not started"));
            Err(ClientError::NotRunning { name, last })
        }
        (None, _) => {
            let last = crate::wait::describe(sandbox.conditions());
            Err(ClientError::NotRunning { name, last })
        }
    }
}
