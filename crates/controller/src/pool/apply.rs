//! Applies a pool's plan.

use std::collections::HashSet;

use agent_sandbox_api::{
    keys::{self, annotations, labels},
    names,
    template::PodMetadata,
    v1beta1::{SandboxTemplate, SandboxWarmPool},
};
use rand::RngExt;
use serde_json::{Value, json};

use super::{
    PoolSettings,
    plan::{Observed, Plan},
    slow_start::slow_start,
};
use crate::{
    api_client::{ApiError, Request, Writer},
    cache::{IndexKey, Key, Kind, Sandbox, Store},
    sandbox_spec,
};

/// Maximum attempts at a create whose outcome is unknown. The controller chose the name, so repeating is harmless.
const CREATE_ATTEMPTS: usize = 3;
/// Maximum number of names that are tried before a hash collision counts as a failure.
const NAME_ATTEMPTS: usize = 100;

/// The result of applying a plan.
#[derive(Debug, Default)]
pub(super) struct Applied {
    pub created: usize,
    pub error: Option<ApiError>,
    /// Something changed, so that another pass has to follow.
    pub changed: bool,
}

pub(super) async fn apply(
    writer: &Writer,
    store: &Store,
    observed: &Observed,
    plan: &Plan,
    settings: &PoolSettings,
    unanswered: &mut Vec<String>,
) -> Applied {
    let mut applied = Applied::default();
    for repair in &plan.repairs {
        send_tolerating_changes(&mut applied, writer, repair).await;
    }
    let deletes = slow_start(plan.deletes.clone(), |request| async move {
        let mut outcome = Applied::default();
        send_tolerating_changes(&mut outcome, writer, &request).await;
        outcome.error.map_or(Ok(()), Err)
    })
    .await;
    applied.changed |= !deletes.done.is_empty();
    applied.error = applied.error.or(deletes.error);
    if let Some(template) = observed.template.as_deref().filter(|_| plan.creates > 0) {
        let chosen = free_names(store, &observed.pool, plan.creates, std::mem::take(unanswered));
        let requests = chosen.iter().map(|name| create(&observed.pool, template, name, settings)).collect();
        let creates = slow_start(requests, |request| async move { create_member(writer, &request).await }).await;
        if let Some(ApiError::Unknown { .. }) = creates.error {
            *unanswered = chosen;
        }
        applied.created = creates.done.len();
        applied.changed |= !creates.done.is_empty();
        applied.error = applied.error.or(creates.error);
    }
    applied
}

/// Sends a write that may fail because the object changed or is gone: that is not an error, because the next pass
/// decides again.
async fn send_tolerating_changes(applied: &mut Applied, writer: &Writer, request: &Request) {
    match writer.send(request).await {
        Ok(_) => applied.changed = true,
        Err(ApiError::NotFound { .. }) => applied.changed = true,
        Err(ApiError::Conflict { .. }) => match writer.read(request.kind, &request.key).await {
            Ok(_) => applied.changed = true,
            Err(error) => applied.error = Some(error),
        },
        Err(error) => applied.error = Some(error),
    }
}

/// Creates a member. An existing object of that name with the pool's label is the result of an earlier attempt.
async fn create_member(writer: &Writer, request: &Request) -> Result<(), ApiError> {
    let mut last = None;
    for _ in 0..CREATE_ATTEMPTS {
        match writer.send(request).await {
            Ok(_) => return Ok(()),
            Err(error @ ApiError::AlreadyExists { .. }) => {
                let found = writer.read(Kind::Sandbox, &request.key).await?.and_then(|object| object.cast::<Sandbox>());
                let ours = |sandbox: &Sandbox| {
                    let crate::api_client::Verb::Create { body } = &request.verb else { return false };
                    json!(sandbox.label(labels::WARM_POOL_SANDBOX))
                        == body["metadata"]["labels"][labels::WARM_POOL_SANDBOX]
                };
                return if found.is_some_and(|sandbox| ours(&sandbox)) { Ok(()) } else { Err(error) };
            }
            Err(error @ ApiError::Unknown { .. }) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or(ApiError::Unknown { message: "a create was never answered".to_owned() }))
}

/// Names for new members: first those whose creation may have happened, then random ones whose hash no other Sandbox of
/// the namespace has (a shared hash would mix up the Pods of two Sandboxes).
fn free_names(store: &Store, pool: &SandboxWarmPool, number: usize, unanswered: Vec<String>) -> Vec<String> {
    let world = store.read();
    let mut random = rand::rng();
    let mut free: Vec<String> = unanswered
        .into_iter()
        .filter(|name| world.sandboxes.get(&Key::new(pool.namespace(), name.as_str())).is_none())
        .take(number)
        .collect();
    let mut taken: HashSet<String> = free.iter().map(|name| names::name_hash(name)).collect();
    for _ in free.len()..number {
        let name = (0..NAME_ATTEMPTS).find_map(|_| {
            let name = names::pool_member(pool.name(), random.random());
            let hash = names::name_hash(&name);
            let index = IndexKey::NameHash { namespace: pool.namespace().to_owned(), hash: hash.clone() };
            (world.sandboxes.find(&index).next().is_none() && taken.insert(hash)).then_some(name)
        });
        free.extend(name);
    }
    free
}

/// The request that creates one member.
pub(super) fn create(
    pool: &SandboxWarmPool,
    template: &SandboxTemplate,
    name: &str,
    settings: &PoolSettings,
) -> Request {
    let pool_hash = names::name_hash(pool.name());
    let hashes = json!({
        labels::WARM_POOL_SANDBOX: pool_hash,
        labels::TEMPLATE_REF_HASH: names::name_hash(template.name()),
        labels::TEMPLATE_HASH: sandbox_spec::template_hash(template),
        labels::POD_TEMPLATE_HASH: names::pod_template_hash(&template.spec.pod_template),
    });
    let mut sandbox_labels = hashes.clone();
    sandbox_labels[labels::LAUNCH_TYPE] = keys::LAUNCH_WARM.into();
    sandbox_labels[labels::CREATED_BY] = keys::CREATED_BY_CONTROLLER.into();

    let metadata = template.spec.pod_template.metadata();
    let mut spec = json!({
        "podTemplate": {
            "spec": sandbox_spec::secure_pod_spec(template),
            "metadata": pod_metadata(metadata, &hashes, settings),
        },
    });
    if let Some(volumes) = &template.spec.volume_claim_templates {
        spec["volumeClaimTemplates"] = json!(volumes);
    }
    if let Some(service) = template.spec.service {
        spec["service"] = service.into();
    }
    let mut member_annotations = json!({ annotations::TEMPLATE_REF: template.name(), annotations::POD_NAME: name });
    // From the start: the member runs before it is claimed.
    if let Some(rules) = template.annotation(annotations::EGRESS) {
        member_annotations[annotations::EGRESS] = rules.into();
    }
    let body = json!({
        "metadata": {
            "name": name,
            "generateName": names::pool_member_prefix(pool.name()),
            "namespace": pool.namespace(),
            "labels": sandbox_labels,
            "annotations": member_annotations,
            "ownerReferences": [pool.controller_reference()],
        },
        "spec": spec,
    });
    Request::create(Kind::Sandbox, Key::new(pool.namespace(), name), body)
}

fn pod_metadata(template: PodMetadata, hashes: &Value, settings: &PoolSettings) -> Value {
    let mut labels = json!(template.labels.unwrap_or_default());
    for (key, value) in hashes.as_object().into_iter().flatten() {
        labels[key] = value.clone();
    }
    let mut annotations = template.annotations.unwrap_or_default();
    if settings.eviction {
        annotations.entry(annotations::SAFE_TO_EVICT.to_owned()).or_insert_with(|| "true".to_owned());
    }
    let mut metadata = json!({ "labels": labels });
    if !annotations.is_empty() {
        metadata["annotations"] = json!(annotations);
    }
    metadata
}
