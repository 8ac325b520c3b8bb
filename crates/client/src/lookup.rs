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

/// Attempts at the wake of a Sandbox that changes while the wake is requested.
const WAKE_ATTEMPTS: usize = 5;

/// The running Pod of a Sandbox, which is woken first if it is suspended and requests wake it.
pub async fn awake_pod(client: &Client, sandbox: &Sandbox) -> Result<Pod, ClientError> {
    if !is_woken_by_requests(sandbox) {
        return running_pod(client, sandbox).await;
    }
    let requested = request_wake(client, sandbox.clone()).await?;
    if !is_woken_by_requests(&requested) && requested.operating_mode() == OperatingMode::Suspended {
        return running_pod(client, &requested).await;
    }
    let (name, namespace) = (requested.name_any(), requested.namespace());
    let generation = requested.metadata.generation;
    let awake = crate::wait::sandbox_awake(client, namespace, &name, generation, crate::READY_TIMEOUT).await?;
    running_pod(client, &awake).await
}

/// Whether the Sandbox is suspended and its policy lets requests wake it.
fn is_woken_by_requests(sandbox: &Sandbox) -> bool {
    sandbox.operating_mode() == OperatingMode::Suspended && sleep::wakes_on_request(|key| sandbox.annotation(key))
}

/// Requests the wake of a Sandbox from the controller, which changes the operating mode and with it the generation.
/// Returns the Sandbox as it is afterwards: with the request, or as another client left it if it needs none any more.
async fn request_wake(client: &Client, mut sandbox: Sandbox) -> Result<Sandbox, ClientError> {
    let name = sandbox.name_any();
    let api: Api<Sandbox> = Api::namespaced(client.clone(), sandbox.namespace());
    let failed = || ClientError::api(format!("wake `{name}`"));
    let mut attempt = 1;
    loop {
        let metadata = json!({
            "uid": sandbox.uid(),
            "resourceVersion": sandbox.resource_version(),
            "annotations": {annotations::WAKE_REQUESTED_AT: sleep::format_time(Timestamp::now())},
        });
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match api.patch(&name, &PatchParams::default(), &patch).await {
            Ok(patched) => return Ok(patched),
            // It changed meanwhile: another client woke it, or the controller wrote its status.
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < WAKE_ATTEMPTS => {}
            Err(error) => return Err(failed()(error)),
        }
        attempt += 1;
        sandbox = api.get(&name).await.map_err(failed())?;
        if !is_woken_by_requests(&sandbox) {
            return Ok(sandbox);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Method, Request, Response};
    use http_body_util::Full;
    use std::sync::{Arc, Mutex};

    fn sandbox(mode: &str, version: usize) -> serde_json::Value {
        json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {
                "name": "box", "namespace": "default", "uid": "one", "generation": 1, "resourceVersion": version.to_string(),
                "annotations": { annotations::SUSPENDED_BY: "idle" },
            },
            "spec": { "operatingMode": mode, "podTemplate": { "spec": {} } },
        })
    }

    /// An API whose Sandbox changes before each of the first `conflicts` patches, and whose mode `later` is read after a
    /// conflict. Returns the outcome of a wake, and how often it was requested.
    async fn wake(conflicts: usize, later: &'static str) -> (Result<Sandbox, ClientError>, usize) {
        let patches: Arc<Mutex<usize>> = Arc::default();
        let count = Arc::clone(&patches);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let mut made = count.lock().unwrap();
            *made += usize::from(request.method() == Method::PATCH);
            let (code, body) = if request.method() == Method::PATCH && *made <= conflicts {
                (
                    409,
                    json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "changed"}),
                )
            } else if request.method() == Method::PATCH {
                (200, sandbox("Suspended", 9))
            } else {
                (200, sandbox(later, *made))
            };
            let response = Response::builder().status(code).body(Full::from(body.to_string())).unwrap();
            async move { Ok::<_, kube::Error>(response) }
        });
        let client = Client::new(service, "default");
        let outcome = request_wake(&client, serde_json::from_value(sandbox("Suspended", 0)).unwrap()).await;
        (outcome, *patches.lock().unwrap())
    }

    #[tokio::test]
    async fn a_wake_is_requested_again_after_a_conflict() {
        let (outcome, patches) = wake(2, "Suspended").await;
        assert_eq!((outcome.unwrap().metadata.resource_version.as_deref(), patches), (Some("9"), 3));
        let (outcome, patches) = wake(2, "Running").await;
        assert_eq!(
            (outcome.unwrap().operating_mode(), patches),
            (OperatingMode::Running, 1),
            "another client was faster"
        );
        let (outcome, patches) = wake(usize::MAX, "Suspended").await;
        assert!(outcome.is_err());
        assert_eq!(patches, WAKE_ATTEMPTS);
    }
}
