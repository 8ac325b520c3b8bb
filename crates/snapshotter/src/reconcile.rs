//! Watches SandboxSnapshots and carries out what [`crate::plan`] decides for each.

use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_api::snapshot::{FINALIZER, SandboxSnapshot, SandboxSnapshotStatus, SnapshotReason};
use agent_sandbox_api::v1beta1::Sandbox;
use futures::StreamExt;
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::plan::{Step, failed, plan, status_after};
use crate::{LayerStore, TakeError};

/// Time until a failed attempt is repeated.
const RETRY: Duration = Duration::from_secs(1);

struct Context {
    client: Client,
    store: Arc<dyn LayerStore>,
    node_name: String,
}

/// Why a pass over a snapshot failed; it is repeated.
#[derive(Debug, thiserror::Error)]
enum ReconcileError {
    #[error("the API refused a request")]
    Api(#[from] kube::Error),
    #[error("the layers of a deleted snapshot cannot be removed")]
    Remove(#[source] TakeError),
}

/// Carries out the plans until the future is dropped.
pub(crate) async fn run(client: Client, store: Arc<dyn LayerStore>, node_name: String) {
    let api: Api<SandboxSnapshot> = Api::all(client.clone());
    let context = Arc::new(Context { client, store, node_name });
    Controller::new(api, watcher::Config::default())
        .run(
            reconcile,
            |snapshot, error, _| {
                tracing::warn!(
                    namespace = snapshot.namespace(),
                    name = snapshot.name(),
                    error = chain(error),
                    "A snapshot is tried again"
                );
                Action::requeue(RETRY)
            },
            context,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(snapshot: Arc<SandboxSnapshot>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let namespace = snapshot.namespace();
    let api: Api<SandboxSnapshot> = Api::namespaced(context.client.clone(), namespace);
    let sandboxes: Api<Sandbox> = Api::namespaced(context.client.clone(), namespace);
    let sandbox = match snapshot.is_ready() || snapshot.is_deleting() {
        true => None,
        false => sandboxes.get_opt(&snapshot.spec.sandbox_name).await?,
    };
    let keeps = sandbox.as_ref().is_some_and(|sandbox| context.store.keeps(namespace, sandbox.uid()));
    let now = Timestamp::now();
    match plan(&snapshot, sandbox.as_ref(), keeps, now) {
        Step::Wait(None) => return Ok(Action::await_change()),
        Step::Wait(Some(time)) => return Ok(Action::requeue(time)),
        Step::AwaitFiles => {
            let text = "the sandbox has no files yet: it has never been started";
            publish(&api, &snapshot, failed(&snapshot, SnapshotReason::Taking, text, now)).await?;
            return Ok(Action::requeue(RETRY));
        }
        Step::AddFinalizer => add_finalizer(&api, &snapshot).await?,
        Step::Take(request) => {
            let Some(sandbox) = &sandbox else { return Ok(Action::requeue(RETRY)) };
            let taken = context.store.take(request).await;
            let status = status_after(&snapshot, sandbox, &taken, &context.node_name, Timestamp::now());
            if !publish(&api, &snapshot, status).await? && taken.is_ok() {
                let removed = context.store.remove(namespace, snapshot.name(), snapshot.uid()).await;
                removed.map_err(ReconcileError::Remove)?;
            }
            return Ok(match taken {
                Err(TakeError::Transient(_)) => Action::requeue(RETRY),
                _ => Action::await_change(),
            });
        }
        Step::Fail(reason, text) => {
            publish(&api, &snapshot, failed(&snapshot, reason, &text, now)).await?;
        }
        Step::Expire => {
            let only_this = Preconditions { uid: snapshot.metadata.uid.clone(), resource_version: None };
            let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::default() };
            ignore_missing(api.delete(snapshot.name(), &params).await.map(drop))?;
        }
        Step::Remove => {
            let removed = context.store.remove(namespace, snapshot.name(), snapshot.uid()).await;
            removed.map_err(ReconcileError::Remove)?;
            let left = snapshot.finalizers().iter().filter(|name| *name != FINALIZER).collect();
            set_finalizers(&api, &snapshot, left).await?;
        }
    }
    Ok(Action::await_change())
}

async fn add_finalizer(api: &Api<SandboxSnapshot>, snapshot: &SandboxSnapshot) -> Result<(), kube::Error> {
    let added = FINALIZER.to_owned();
    set_finalizers(api, snapshot, snapshot.finalizers().iter().chain([&added]).collect()).await
}

async fn set_finalizers(
    api: &Api<SandboxSnapshot>,
    snapshot: &SandboxSnapshot,
    finalizers: Vec<&String>,
) -> Result<(), kube::Error> {
    let metadata = json!({"resourceVersion": snapshot.resource_version(), "finalizers": finalizers});
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    ignore_missing(api.patch(snapshot.name(), &PatchParams::default(), &patch).await.map(drop))
}

/// Writes a status unless it says what the object already says. Returns whether the object still exists.
async fn publish(
    api: &Api<SandboxSnapshot>,
    snapshot: &SandboxSnapshot,
    status: SandboxSnapshotStatus,
) -> Result<bool, kube::Error> {
    if snapshot.status.as_ref() == Some(&status) {
        return Ok(true);
    }
    let metadata = json!({"uid": snapshot.uid(), "resourceVersion": snapshot.resource_version()});
    let patch = Patch::Merge(json!({ "metadata": metadata, "status": status }));
    match api.patch_status(snapshot.name(), &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        written => written.map(|_| true),
    }
}

fn ignore_missing(done: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match done {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done,
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
