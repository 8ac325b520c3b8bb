//! Waiting for an object to reach a state: by watching, with a deadline, ending early when the state can never come.

use crate::{ClientError, claims::Created};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
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

/// Reasons of Ready=False that no amount of waiting heals.
const TERMINAL: &[&str] = &[
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

/// One watch lasts this long at most, then another follows.
const WATCH_SECONDS: u32 = 290;
/// The pause before a watch that broke is taken up again.
const RECONNECT: Duration = Duration::from_millis(200);

/// What one look at an object says about the wait.
enum Look {
    Done,
    Never { reason: String, message: String },
    NotYet(String),
}

/// Waits until a Sandbox is Ready.
pub async fn sandbox_ready(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<Sandbox, ClientError> {
    let waiting = Waiting { client, namespace, name, kind: "sandbox", wanted: "ready", limit };
    waiting.until(|sandbox: &Sandbox| ready(sandbox.conditions(), sandbox.metadata.generation)).await
}

/// Waits until a claim is Ready and names its Sandbox.
pub async fn claim_ready(
    client: &Client,
    namespace: &str,
    name: &str,
    limit: Duration,
) -> Result<SandboxClaim, ClientError> {
    let waiting = Waiting { client, namespace, name, kind: "claim", wanted: "ready", limit };
    waiting.until(look_at_claim).await
}

/// The same for a claim just created or taken over: one watch from its own version on, which misses nothing and asks for nothing twice.
pub(crate) async fn claim_ready_from(
    client: &Client,
    namespace: &str,
    name: &str,
    created: &Created,
    limit: Duration,
) -> Result<SandboxClaim, ClientError> {
    let api: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    let mut last = "no controller has looked at it yet".to_owned();
    let waiting = follow_claim(&api, name, created, &mut last);
    let found = tokio::time::timeout(limit, waiting).await;
    found.unwrap_or_else(|_| Err(ClientError::Timeout { name: name.to_owned(), wanted: "ready", after: limit, last }))
}

async fn follow_claim(
    api: &Api<SandboxClaim>,
    name: &str,
    created: &Created,
    last: &mut String,
) -> Result<SandboxClaim, ClientError> {
    let deleted = || ClientError::Deleted { name: name.to_owned() };
    if let Some(claim) = &created.object {
        match look_at_claim(claim) {
            Look::Done => return Ok(claim.clone()),
            Look::Never { reason, message } => {
                return Err(ClientError::Failed { name: name.to_owned(), reason, message });
            }
            Look::NotYet(why) => *last = why,
        }
    }
    let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
    let mut version = created.resource_version.clone();
    loop {
        let mut changes = match api.watch(&params, &version).await {
            Ok(changes) => changes.boxed(),
            // A version that is too old for a watch: begin with what is there now.
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
                tokio::time::sleep(RECONNECT).await;
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
            match look_at_claim(&claim) {
                Look::Done => return Ok(claim),
                Look::Never { reason, message } => {
                    return Err(ClientError::Failed { name: name.to_owned(), reason, message });
                }
                Look::NotYet(why) => *last = why,
            }
        }
        // Watches end by themselves; a claim that went away meanwhile leaves no trace in the next one.
        if api.get_metadata_opt(name).await.is_ok_and(|found| found.is_none()) {
            return Err(deleted());
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Ready, and naming its Sandbox. A pool that does not exist is final whatever condition says so.
fn look_at_claim(claim: &SandboxClaim) -> Look {
    let missing = claim.conditions().iter().find(|condition| condition.reason == "WarmPoolNotFound");
    if let Some(condition) = missing {
        return Look::Never { reason: condition.reason.clone(), message: condition.message.clone() };
    }
    match ready(claim.conditions(), None) {
        Look::Done if claim.bound_sandbox().is_none() => Look::NotYet("Ready, but no sandbox is named yet".into()),
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
    let waiting = Waiting { client, namespace, name, kind: "sandbox", wanted: "suspended", limit };
    waiting
        .until(|sandbox: &Sandbox| match sandbox.conditions().iter().find(|condition| condition.type_ == "Suspended") {
            Some(condition) if condition.status == "True" => Look::Done,
            _ => Look::NotYet(describe(sandbox.conditions())),
        })
        .await
}

/// Waits until every container of a Pod has been started.
pub async fn pod_started(client: &Client, namespace: &str, name: &str, limit: Duration) -> Result<Pod, ClientError> {
    let waiting = Waiting { client, namespace, name, kind: "Pod", wanted: "started", limit };
    waiting.until(started).await
}

fn started(pod: &Pod) -> Look {
    let Some(status) = &pod.status else { return Look::NotYet("no node has taken it up yet".to_owned()) };
    let said = |text: &Option<String>| text.clone().unwrap_or_default();
    match status.phase.as_deref() {
        Some("Running") => Look::Done,
        Some("Failed") => Look::Never { reason: said(&status.reason), message: said(&status.message) },
        _ => {
            let containers = status.container_statuses.iter().flatten();
            let mut waiting = containers.filter_map(|container| container.state.as_ref()?.waiting.as_ref());
            match waiting.find(|waiting| waiting.message.is_some()) {
                Some(why) => Look::NotYet(format!("{}: {}", said(&why.reason), said(&why.message))),
                None => Look::NotYet(said(&status.phase)),
            }
        }
    }
}

/// Waits until an object is gone, or has been replaced by another of the same name.
pub async fn gone<K>(api: Api<K>, name: &str, uid: Option<&str>, limit: Duration) -> Result<(), ClientError>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let same = |object: &K| uid.is_none() || object.meta().uid.as_deref() == uid;
    let watching = async {
        let mut changes = watcher::watch_object(api, name).boxed();
        while let Some(change) = changes.next().await {
            // A watch that breaks is taken up again by the watcher; only the deadline ends the wait.
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

/// One line about an object's readiness, from its conditions.
pub(crate) fn describe(conditions: &[Condition]) -> String {
    match conditions.iter().find(|condition| condition.type_ == "Ready") {
        Some(condition) if condition.message.is_empty() => condition.reason.clone(),
        Some(condition) => format!("{}: {}", condition.reason, condition.message),
        None => "no controller has looked at it yet".to_owned(),
    }
}

/// A condition counts only when it speaks of the object's present generation.
fn ready(conditions: &[Condition], generation: Option<i64>) -> Look {
    let Some(condition) = conditions.iter().find(|condition| condition.type_ == "Ready") else {
        return Look::NotYet(describe(conditions));
    };
    if generation.zip(condition.observed_generation).is_some_and(|(now, seen)| seen < now) {
        return Look::NotYet("the newest change has not been seen yet".into());
    }
    match condition.status.as_str() {
        "True" => Look::Done,
        _ if TERMINAL.contains(&condition.reason.as_str()) => {
            Look::Never { reason: condition.reason.clone(), message: condition.message.clone() }
        }
        _ => Look::NotYet(describe(conditions)),
    }
}

struct Waiting<'a> {
    client: &'a Client,
    namespace: &'a str,
    name: &'a str,
    kind: &'static str,
    wanted: &'static str,
    limit: Duration,
}

impl Waiting<'_> {
    async fn until<K>(&self, look: impl Fn(&K) -> Look) -> Result<K, ClientError>
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
        let mut last = "it has not been seen yet".to_owned();
        let watching = async {
            let mut changes = watcher::watch_object(api, self.name).boxed();
            let mut seen = false;
            loop {
                match changes.try_next().await {
                    Ok(Some(Some(object))) => {
                        seen = true;
                        match look(&object) {
                            Look::Done => return Ok(object),
                            Look::Never { reason, message } => {
                                return Err(ClientError::Failed { name: object.name_any(), reason, message });
                            }
                            Look::NotYet(why) => last = why,
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
