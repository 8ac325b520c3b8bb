//! Snapshots: taking them, making new Sandboxes from them, setting a Sandbox back to one.

use crate::{ClientError, error::is_conflict, lifecycle, lookup, wait};
use agent_sandbox_api::{
    keys::{self, annotations},
    snapshot::{SandboxSnapshot, SandboxSnapshotSpec, SnapshotSource},
    v1beta1::{OperatingMode, Sandbox},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// What to take a snapshot of, and how to name it.
#[derive(Clone, Debug, Default)]
pub struct SnapshotRequest {
    /// A Sandbox or a claim.
    pub sandbox: String,
    /// Generated from the Sandbox's name by default.
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub expires_after: Option<Duration>,
}

/// Takes a snapshot and waits until it is complete. One that fails is deleted again. With a limit of zero it is returned
/// as soon as it is asked for.
pub async fn take_snapshot(
    client: &Client,
    namespace: &str,
    request: SnapshotRequest,
    limit: Duration,
) -> Result<SandboxSnapshot, ClientError> {
    let sandbox = lookup::find(client, namespace, &request.sandbox).await?.sandbox.name_any();
    let api: Api<SandboxSnapshot> = Api::namespaced(client.clone(), namespace);
    let wanted = SandboxSnapshot {
        metadata: ObjectMeta {
            generate_name: request.name.is_none().then(|| format!("{sandbox}-")),
            name: request.name.clone(),
            labels: Some(request.labels),
            ..ObjectMeta::default()
        },
        spec: SandboxSnapshotSpec {
            sandbox_name: sandbox.clone(),
            expires_at: request.expires_after.map(crate::client::from_now),
        },
        status: None,
    };
    let created = api.create(&PostParams::default(), &wanted).await.map_err(|error| match &request.name {
        Some(name) if is_conflict(&error) => {
            ClientError::AlreadyExists { namespace: namespace.to_owned(), name: name.clone() }
        }
        _ => ClientError::api(format!("create a snapshot of `{sandbox}`"))(error),
    })?;
    if limit.is_zero() {
        return Ok(created);
    }
    let taken = wait::snapshot_ready(client, namespace, created.name(), limit).await;
    if taken.is_err() {
        let only_this = Preconditions { uid: created.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
        // The error of the snapshot says more than that of its removal.
        let _ = api.delete(created.name(), &params).await;
    }
    taken
}

/// The snapshots of a namespace, the oldest first.
pub async fn list_snapshots(client: &Client, namespace: &str) -> Result<Vec<SandboxSnapshot>, ClientError> {
    let api: Api<SandboxSnapshot> = Api::namespaced(client.clone(), namespace);
    let list = api.list(&ListParams::default()).await;
    let mut list = list.map_err(ClientError::api(format!("list snapshots in `{namespace}`")))?.items;
    list.sort_by_key(|snapshot| {
        let taken = snapshot.status.as_ref().and_then(|status| status.taken_at.clone());
        (taken.or_else(|| snapshot.creation_timestamp()).map(|time| time.0), snapshot.name_any())
    });
    Ok(list)
}

/// A snapshot that Sandboxes can be made from.
pub async fn find_snapshot(client: &Client, namespace: &str, name: &str) -> Result<SandboxSnapshot, ClientError> {
    let api: Api<SandboxSnapshot> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(ClientError::api(format!("read snapshot `{name}`")))?;
    let found = found.ok_or_else(|| ClientError::NotFound {
        kind: "snapshot",
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })?;
    match found.ready() {
        _ if found.is_ready() && !found.is_deleting() => Ok(found),
        _ if found.is_deleting() => Err(ClientError::Invalid(format!("snapshot `{name}` is being deleted"))),
        Some(ready) => Err(ClientError::Invalid(format!("snapshot `{name}` is not complete: {}", ready.message))),
        None => Err(ClientError::Invalid(format!("snapshot `{name}` is not complete yet"))),
    }
}

/// Deletes a snapshot. Sandboxes that were made from it stay.
pub async fn delete_snapshot(client: &Client, namespace: &str, name: &str) -> Result<(), ClientError> {
    let api: Api<SandboxSnapshot> = Api::namespaced(client.clone(), namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if crate::error::is_not_found(&error) => {
            Err(ClientError::NotFound { kind: "snapshot", namespace: namespace.to_owned(), name: name.to_owned() })
        }
        Err(error) => Err(ClientError::api(format!("delete snapshot `{name}`"))(error)),
    }
}

/// A Sandbox to create from a snapshot: its files, and the template of the Sandbox that it was taken of. Name, address,
/// tokens and user ids are its own.
pub fn sandbox_from(snapshot: &SandboxSnapshot, name: &str) -> Result<Sandbox, ClientError> {
    let of = snapshot.name();
    let source = snapshot.status.as_ref().and_then(|status| status.sandbox.clone());
    let SnapshotSource { mut pod_template, volume_claim_templates, egress, .. } =
        source.ok_or_else(|| ClientError::Invalid(format!("snapshot `{of}` is not complete")))?;
    if volume_claim_templates.is_some_and(|templates| !templates.is_empty()) {
        return Err(ClientError::Invalid(format!(
            "the sandbox of snapshot `{of}` has volumes of its own, whose files snapshots do not contain"
        )));
    }
    let mut metadata = pod_template.metadata();
    for pairs in [&mut metadata.labels, &mut metadata.annotations].into_iter().flatten() {
        pairs.retain(|key, _| !keys::is_reserved_annotation(key));
    }
    if metadata.annotations.as_ref().is_some_and(|pairs| pairs.contains_key(annotations::COPIED_VOLUMES)) {
        return Err(ClientError::Invalid(format!(
            "the sandbox of snapshot `{of}` works on copies of folders of its node, which belong to it alone"
        )));
    }
    pod_template.metadata = Some(Arc::new(metadata));
    let mut sandbox = Sandbox::default();
    sandbox.metadata.name = Some(name.to_owned());
    let from = (annotations::SNAPSHOT.to_owned(), of.to_owned());
    sandbox.metadata.annotations = Some(egress.into_iter().chain([from]).collect());
    sandbox.spec.pod_template = pod_template;
    Ok(sandbox)
}

/// Sets a Sandbox back to a snapshot: it stops, and has the files of the snapshot when it starts again. Everything that was
/// written since is lost. The Sandbox keeps its name and identity, and runs afterwards if it ran before.
///
/// One request decides: a Sandbox that is found suspended after a caller was interrupted has the files of the snapshot
/// when it is resumed.
pub async fn roll_back(
    client: &Client,
    namespace: &str,
    name: &str,
    snapshot: &SandboxSnapshot,
    limit: Duration,
) -> Result<Sandbox, ClientError> {
    let sandbox = lookup::find(client, namespace, name).await?.sandbox;
    let sandbox_name = sandbox.name_any();
    let of = snapshot.status.as_ref().and_then(|status| status.sandbox.as_ref());
    if of.is_some_and(|source| source.pod_template.spec != sandbox.spec.pod_template.spec) {
        return Err(ClientError::Invalid(format!(
            "snapshot `{}` was taken of a sandbox with another Pod template than `{sandbox_name}`; create a sandbox from it instead",
            snapshot.name()
        )));
    }
    let ran = sandbox.operating_mode() == OperatingMode::Running;
    let restored_at = agent_sandbox_api::sleep::format_time(Timestamp::now());
    let origin = json!({annotations::SNAPSHOT: snapshot.name(), annotations::RESTORED_AT: restored_at});
    let mut changes = json!({"metadata": {"uid": sandbox.uid(), "annotations": origin}});
    if ran {
        // A Pod keeps the origin that it was created with: the one that stops now does so with its own files. As when a
        // user suspends: it is not the effect of idleness, nor undone by a request from before.
        changes["spec"]["operatingMode"] = json!(OperatingMode::Suspended);
        for key in [annotations::SUSPENDED_BY, annotations::WAKE_REQUESTED_AT] {
            changes["metadata"]["annotations"][key] = serde_json::Value::Null;
        }
    }
    let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let patched = api.patch(&sandbox_name, &PatchParams::default(), &Patch::Merge(changes)).await;
    let patched = patched.map_err(ClientError::api(format!("set `{sandbox_name}` back to a snapshot")))?;
    if !ran {
        return Ok(patched);
    }
    wait::sandbox_suspended(client, namespace, &sandbox_name, limit).await?;
    lifecycle::resume(client, namespace, &sandbox_name).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Method, Request, Response};
    use http_body_util::{BodyExt as _, Full};
    use kube::client::Body;
    use serde_json::Value;
    use std::sync::Mutex;

    /// An API with one running Sandbox, which stops as soon as it is asked to.
    struct Served {
        sandbox: Value,
        /// Number of changes after which every request fails.
        changes: usize,
    }

    impl Served {
        fn respond(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
            if self.changes == 0 {
                return (500, failure(500));
            }
            if method == Method::PATCH {
                self.changes -= 1;
                merge(&mut self.sandbox, &serde_json::from_slice(body).unwrap());
            }
            let stopped = self.mode() == "Suspended";
            self.sandbox["status"]["conditions"] = json!([{
                "type": "Suspended", "status": if stopped { "True" } else { "False" }, "reason": "Test", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]);
            if path.ends_with("/sandboxes/box") {
                (200, self.sandbox.clone())
            } else if path.ends_with("/sandboxes") {
                let list = json!({"metadata": {"resourceVersion": "1"}, "items": [self.sandbox]});
                (200, list)
            } else {
                (404, failure(404))
            }
        }

        fn mode(&self) -> &str {
            self.sandbox["spec"]["operatingMode"].as_str().unwrap()
        }

        fn origin(&self) -> Option<&str> {
            self.sandbox["metadata"]["annotations"][annotations::SNAPSHOT].as_str()
        }
    }

    fn failure(code: u16) -> Value {
        let reason = if code == 404 { "NotFound" } else { "InternalError" };
        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "stopped"})
    }

    /// A JSON merge patch.
    fn merge(into: &mut Value, patch: &Value) {
        let Some(fields) = patch.as_object() else {
            *into = patch.clone();
            return;
        };
        for (key, value) in fields {
            match value {
                Value::Null => drop(into.as_object_mut().map(|into| into.remove(key))),
                value => merge(&mut into[key], value),
            }
        }
    }

    /// Rolls a Sandbox in this mode back, with an API that ends after some changes.
    async fn interrupted(mode: &str, changes: usize) -> (Result<Sandbox, ClientError>, Served) {
        let sandbox = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": "box", "namespace": "default", "uid": "one", "resourceVersion": "1", "annotations": {}},
            "spec": {"operatingMode": mode, "podTemplate": {"spec": {"containers": []}}},
        });
        let api = Arc::new(Mutex::new(Served { sandbox, changes }));
        let served = Arc::clone(&api);
        let service = tower::service_fn(move |request: Request<Body>| {
            let served = Arc::clone(&served);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let (code, body) = served.lock().unwrap().respond(&parts.method, parts.uri.path(), &body);
                let response = Response::builder().status(code).body(Full::from(body.to_string())).unwrap();
                Ok::<_, kube::Error>(response)
            }
        });
        let client = Client::new(service, "default");
        let snapshot: SandboxSnapshot = serde_json::from_value(json!({
            "apiVersion": "agent-sandbox.github.io/v1alpha1", "kind": "SandboxSnapshot",
            "metadata": {"name": "first"}, "spec": {"sandboxName": "box"},
        }))
        .unwrap();
        let outcome = roll_back(&client, "default", "box", &snapshot, Duration::from_millis(200)).await;
        drop(client);
        let api = api.lock().unwrap();
        (outcome, Served { sandbox: api.sandbox.clone(), changes: api.changes })
    }

    #[tokio::test]
    async fn an_interrupted_rollback_leaves_no_stopped_sandbox_with_its_old_files() {
        for (changes, state) in [(0, ("Running", None)), (1, ("Suspended", Some("first")))] {
            let (outcome, api) = interrupted("Running", changes).await;
            assert!(outcome.is_err(), "{changes}: {outcome:?}");
            assert_eq!((api.mode(), api.origin()), state);
        }
    }

    #[tokio::test]
    async fn a_rollback_leaves_a_sandbox_in_the_mode_that_it_had() {
        for mode in ["Running", "Suspended"] {
            let (outcome, api) = interrupted(mode, usize::MAX).await;
            outcome.unwrap();
            assert_eq!((api.mode(), api.origin()), (mode, Some("first")));
        }
    }
}
