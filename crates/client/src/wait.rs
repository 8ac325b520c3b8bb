//! Waits for an object to reach a state: with a watch and a deadline, failing early if the state cannot be reached.

use crate::{
    ClientError,
    claims::Created,
    start_failure::{Owner, check_new, or_failure},
};
use agent_sandbox_api::snapshot::SandboxSnapshot;
use agent_sandbox_api::v1beta1::{OperatingMode, Sandbox, SandboxClaim};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{
    Metadata, NamespaceResourceScope, Resource,
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::{
    Api, Client, ResourceExt,
    api::{WatchEvent, WatchParams},
    runtime::watcher,
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, time::Duration};

/// Reasons of Ready=False that are final, so that waiting longer is useless.
const TERMINAL_REASONS: &[&str] = &[
    "TemplateNotFound",
    "WarmPoolNotFound",
    "InvalidMetadata",
    "EnvVarsInjectionRejected",
    "VolumeClaimTemplatesError",
    "ClaimExpired",
    "SandboxExpired",
    "InvalidConfiguration",
    "PodFailed",
    "PodSucceeded",
];

/// Words of the API about a Pod that a namespace's rules (Pod Security, LimitRange) or its RuntimeClass exclude. Other
/// refusals, for example by a quota, may end.
const REFUSALS: [&str; 4] = ["violates PodSecurity", "usage per Container", "usage per Pod", "pod rejected: "];

/// Server-side timeout of one watch, after which another one follows.
const WATCH_SECONDS: u32 = 290;
/// Delay before reconnecting a broken watch.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);

/// State of an object relative to the awaited one.
enum Progress {
    Reached,
    Unreachable { reason: String, message: String },
    Pending(String),
}

/// Waits until a Sandbox is Ready. What no waiting can mend ends the wait with its reason.
pub async fn sandbox_ready(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Sandbox, ClientError> {
    let waiting = Wait { client, namespace, name, kind: "sandbox", wanted: "ready", limit };
    let ready = waiting.until(|sandbox: &Sandbox| ready_progress(sandbox.conditions(), sandbox.metadata.generation));
    or_failure(client, namespace, Owner::Sandbox(name), ready).await
}

/// Like [`sandbox_ready`], for a Sandbox that was just created: its Pod is Ready for a moment also if its command ends
/// at once.
pub async fn new_sandbox_ready(
    client: &Client,
    namespace: &str,
    made: &Sandbox,
    limit: Duration,
) -> Result<Sandbox, ClientError> {
    let ready = sandbox_ready(client, namespace, &made.name_any(), limit).await?;
    check_new(client, namespace, made).await?;
    Ok(ready)
}

/// Waits until a Sandbox that was suspended and asked to wake, or running, at `generation` is Ready.
pub(crate) async fn sandbox_awake(
    client: &Client,
    namespace: &str,
    name: &str,
    generation: Option<i64>,
    limit: Duration,
) -> Result<Sandbox, ClientError> {
    let waiting = Wait { client, namespace, name, kind: "sandbox", wanted: "awake", limit };
    let ready = waiting.until(|sandbox: &Sandbox| match sandbox.operating_mode() {
        OperatingMode::Suspended if sandbox.metadata.generation == generation => {
            Progress::Pending("the controller has not resumed it yet".to_owned())
        }
        OperatingMode::Suspended => {
            Progress::Unreachable { reason: "Suspended".to_owned(), message: "it was suspended again".to_owned() }
        }
        OperatingMode::Running => ready_progress(sandbox.conditions(), sandbox.metadata.generation),
    });
    or_failure(client, namespace, Owner::Sandbox(name), ready).await
}

/// Waits until a claim is Ready and bound to a Sandbox.
pub async fn claim_ready(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<SandboxClaim, ClientError> {
    let waiting = Wait { client, namespace, name, kind: "claim", wanted: "ready", limit };
    or_failure(client, namespace, Owner::Claim { name, uid: None }, waiting.until(claim_progress)).await
}

/// Like [`claim_ready`], for a claim that was just created or adopted: one watch from its resource version on, which
/// misses no change and needs no initial list.
pub(crate) async fn claim_ready_from(
    client: &Client,
    namespace: &str,
    name: &str,
    created: &Created,
    limit: Duration,
) -> Result<SandboxClaim, ClientError> {
    let api: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    let ready = async {
        let mut last = "no controller has looked at it yet".to_owned();
        let found = tokio::time::timeout(limit, follow_claim(&api, name, created, &mut last)).await;
        let late = |_| Err(ClientError::Timeout { name: name.to_owned(), wanted: "ready", after: limit, last });
        found.unwrap_or_else(late)
    };
    or_failure(client, namespace, Owner::Claim { name, uid: Some(&created.uid) }, ready).await
}

async fn follow_claim(
    api: &Api<SandboxClaim>,
    name: &str,
    created: &Created,
    last: &mut String,
) -> Result<SandboxClaim, ClientError> {
    let deleted = || ClientError::Deleted { name: name.to_owned() };
    if let Some(claim) = &created.object {
        match claim_progress(claim) {
            Progress::Reached => return Ok(claim.clone()),
            Progress::Unreachable { reason, message } => {
                return Err(ClientError::Failed { name: name.to_owned(), reason, message });
            }
            Progress::Pending(why) => *last = why,
        }
    }
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
    let mut version = created.resource_version.clone();
    loop {
        let mut changes = match api.watch(&params, &version).await {
            Ok(changes) => changes.boxed(),
            // The version is too old for a watch: start with the current state.
            Err(kube::Error::Api(status)) if status.code == 410 => {
                version = "0".to_owned();
                continue;
            }
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                let error = kube::Error::Api(status);
                return Err(ClientError::api(format!("wait for claim `{name}`"))(error));
            }
            Err(error) => {
                *last = error.to_string();
                tokio::time::sleep(RECONNECT_DELAY).await;
                continue;
            }
        };
        while let Some(change) = changes.next().await {
            let claim = match change {
                Ok(WatchEvent::Added(claim) | WatchEvent::Modified(claim)) => claim,
                Ok(WatchEvent::Deleted(_)) => return Err(deleted()),
                Ok(WatchEvent::Bookmark(_)) => continue,
                Ok(WatchEvent::Error(status)) => {
                    if status.code == 410 {
                        version = "0".to_owned();
                    }
                    *last = status.message;
                    break;
                }
                Err(error) => {
                    *last = error.to_string();
                    break;
                }
            };
            if claim.uid() != created.uid {
                return Err(deleted());
            }
            version = claim.resource_version().to_owned();
            match claim_progress(&claim) {
                Progress::Reached => return Ok(claim),
                Progress::Unreachable { reason, message } => {
                    return Err(ClientError::Failed { name: name.to_owned(), reason, message });
                }
                Progress::Pending(why) => *last = why,
            }
        }
        // Watches time out, and the next one does not report a claim that was deleted in between.
        if api.get_metadata_opt(name).await.is_ok_and(|found| found.is_none()) {
            return Err(deleted());
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// Reached if the claim is Ready and bound to a Sandbox. A missing pool is final, whichever condition reports it.
fn claim_progress(claim: &SandboxClaim) -> Progress {
    let missing = claim.conditions().iter().find(|condition| condition.reason == "WarmPoolNotFound");
    if let Some(condition) = missing {
        return Progress::Unreachable { reason: condition.reason.clone(), message: condition.message.clone() };
    }
    match ready_progress(claim.conditions(), None) {
        Progress::Reached if claim.bound_sandbox().is_none() => {
            Progress::Pending("Ready, but not bound to a sandbox yet".into())
        }
        other => other,
    }
}

/// Waits until a Sandbox has stopped after a suspend.
pub async fn sandbox_suspended(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Sandbox, ClientError> {
    let waiting = Wait { client, namespace, name, kind: "sandbox", wanted: "suspended", limit };
    waiting
        .until(|sandbox: &Sandbox| match sandbox.conditions().iter().find(|condition| condition.type_ == "Suspended") {
            Some(condition) if condition.status == "True" => Progress::Reached,
            _ => Progress::Pending(describe(sandbox.conditions())),
        })
        .await
}

/// Waits until a snapshot is complete, or cannot be.
pub(crate) async fn snapshot_ready(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<SandboxSnapshot, ClientError> {
    let waiting = Wait { client, namespace, name, kind: "snapshot", wanted: "complete", limit };
    waiting
        .until(|snapshot: &SandboxSnapshot| match snapshot.ready() {
            Some(_) if snapshot.is_ready() => Progress::Reached,
            Some(ready) if snapshot.has_failed() => {
                Progress::Unreachable { reason: ready.reason.clone(), message: ready.message.clone() }
            }
            Some(ready) => Progress::Pending(format!("{}: {}", ready.reason, ready.message)),
            None => Progress::Pending("no node has looked at it yet".to_owned()),
        })
        .await
}

/// Waits until every container of a Pod has been started.
pub async fn pod_started(client: &Client, namespace: &str, name: &str, limit: Duration) -> Result<Pod, ClientError> {
    let waiting = Wait { client, namespace, name, kind: "Pod", wanted: "started", limit };
    waiting.until(pod_progress).await
}

fn pod_progress(pod: &Pod) -> Progress {
    let Some(status) = &pod.status else { return Progress::Pending("no node has reported a status yet".to_owned()) };
    let text_of = |text: &Option<String>| text.clone().unwrap_or_default();
    match status.phase.as_deref() {
        Some("Running") => Progress::Reached,
        Some("Failed") => Progress::Unreachable { reason: text_of(&status.reason), message: text_of(&status.message) },
        _ => {
            let containers = status.container_statuses.iter().flatten();
            let mut waiting = containers.filter_map(|container| container.state.as_ref()?.waiting.as_ref());
            match waiting.find(|waiting| waiting.message.is_some()) {
                Some(why) => Progress::Pending(format!("{}: {}", text_of(&why.reason), text_of(&why.message))),
                None => Progress::Pending(text_of(&status.phase)),
            }
        }
    }
}

/// Waits until an object is deleted, or replaced by another one of the same name.
pub async fn gone<K>(api: Api<K>, name: &str, uid: Option<&str>, limit: Duration) -> Result<(), ClientError>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let same = |object: &K| uid.is_none() || object.meta().uid.as_deref() == uid;
    let watching = async {
        let mut changes = watcher::watch_object(api, name).boxed();
        while let Some(change) = changes.next().await {
            // The watcher reconnects broken watches; only the deadline ends the wait.
            match change {
                Ok(Some(object)) if same(&object) => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
    };
    tokio::time::timeout(limit, watching).await.map_err(|_| ClientError::Timeout {
        name: name.to_owned(),
        wanted: "gone",
        after: limit,
        last: "it is still being deleted".to_owned(),
    })
}

/// Describes the Ready condition of an object in one line.
pub(crate) fn describe(conditions: &[Condition]) -> String {
    match conditions.iter().find(|condition| condition.type_ == "Ready") {
        Some(condition) if condition.message.is_empty() => condition.reason.clone(),
        Some(condition) => format!("{}: {}", condition.reason, condition.message),
        None => "no controller has looked at it yet".to_owned(),
    }
}

/// Evaluates the Ready condition, which counts only if it refers to the current generation.
fn ready_progress(conditions: &[Condition], generation: Option<i64>) -> Progress {
    let Some(condition) = conditions.iter().find(|condition| condition.type_ == "Ready") else {
        return Progress::Pending(describe(conditions));
    };
    if generation.zip(condition.observed_generation).is_some_and(|(now, seen)| seen < now) {
        return Progress::Pending("the controller has not processed the newest change yet".into());
    }
    match condition.status.as_str() {
        "True" => Progress::Reached,
        _ if TERMINAL_REASONS.contains(&condition.reason.as_str()) || is_refused(condition) => {
            Progress::Unreachable { reason: condition.reason.clone(), message: condition.message.clone() }
        }
        _ => Progress::Pending(describe(conditions)),
    }
}

/// Whether the API refuses the Pod for what its spec says.
fn is_refused(condition: &Condition) -> bool {
    condition.reason == "ReconcilerError" && REFUSALS.iter().any(|words| condition.message.contains(words))
}

struct Wait<'a> {
    client: &'a Client,
    namespace: &'a str,
    name: &'a str,
    kind: &'static str,
    wanted: &'static str,
    limit: Duration,
}

impl Wait<'_> {
    async fn until<K>(&self, progress: impl Fn(&K) -> Progress) -> Result<K, ClientError>
    where
        K: Resource<Scope = NamespaceResourceScope>
            + Metadata<Ty = ObjectMeta>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), self.namespace);
        let mut last = "the object has not been observed yet".to_owned();
        let watching = async {
            let mut changes = watcher::watch_object(api, self.name).boxed();
            let mut seen = false;
            loop {
                match changes.try_next().await {
                    Ok(Some(Some(object))) => {
                        seen = true;
                        match progress(&object) {
                            Progress::Reached => return Ok(object),
                            Progress::Unreachable { reason, message } => {
                                return Err(ClientError::Failed { name: object.name_any(), reason, message });
                            }
                            Progress::Pending(why) => last = why,
                        }
                    }
                    Ok(Some(None)) if seen => return Err(self.missing()),
                    Ok(Some(None)) => last = "it does not exist yet".to_owned(),
                    Ok(None) => return Err(self.missing()),
                    Err(error) => last = error.to_string(),
                }
            }
        };
        match tokio::time::timeout(self.limit, watching).await {
            Ok(outcome) => outcome,
            Err(_) => {
                Err(ClientError::Timeout { name: self.name.to_owned(), wanted: self.wanted, after: self.limit, last })
            }
        }
    }

    fn missing(&self) -> ClientError {
        ClientError::NotFound { kind: self.kind, namespace: self.namespace.to_owned(), name: self.name.to_owned() }
    }
}
