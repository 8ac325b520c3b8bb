//! The sandboxes of a session: finding the one that a call refers to, creating it, and its lifetime by idleness.

use crate::arguments::{Create, Delete, SandboxRef};
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_client::{ClaimRequest, ClientError, SandboxClient, SandboxHandle, Source};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, Preconditions},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use thiserror::Error;

/// Maximum number of cached handles. When it is reached, the whole cache is cleared.
const MAX_CACHED_HANDLES: usize = 1024;

/// Annotation on a claim, or on a Sandbox without one: seconds without a call after which its sandbox is deleted.
const IDLE_SECONDS: &str = "mcp.k8s-agent-sandbox/idle-seconds";

/// Idle time of a sandbox that was created by the first call that needed one: a person may think in between.
pub(crate) const DEFAULT_IDLE: Duration = Duration::from_secs(3600);

/// The lifetime is extended when this part of the idle time has passed since the last extension, not at every call.
const EXTEND_AFTER_PART: u32 = 4;

/// Why a tool call failed. The message is returned to the model.
#[derive(Debug, Error)]
pub(crate) enum ToolError {
    #[error("sandbox claim {name:?} not found in namespace {namespace:?}")]
    NotFound { namespace: String, name: String },
    #[error("snapshot {name:?} not found in namespace {namespace:?}")]
    SnapshotNotFound { namespace: String, name: String },
    #[error("the label {0:?} identifies the session and cannot be set")]
    ReservedLabel(String),
    #[error("content is not base64: {0}")]
    Base64(base64::DecodeError),
    #[error("{0:?} is not UTF-8 text; read it with binary set to true")]
    NotText(String),
    #[error("cannot open a port on this machine: {0}")]
    Listen(std::io::Error),
    #[error("{0} ports are open already")]
    TooManyPorts(usize),
    #[error("{}", .0.full())]
    Sandbox(#[from] ClientError),
}

/// What calls without these arguments use. The descriptions of the tools state it.
#[derive(Clone, Debug)]
pub struct Defaults {
    pub namespace: String,
    /// Warm pool, or template.
    pub source: String,
}

/// A sandbox with open connections.
struct Cached {
    handle: SandboxHandle,
    /// When its lifetime was last extended by this server.
    extended: Option<Instant>,
}

/// Handles by session, namespace and claim.
type HandleCache = HashMap<(String, String, String), Cached>;

/// The sandboxes of a cluster, separated by session.
#[derive(Clone)]
pub struct Sandboxes {
    pub(crate) client: SandboxClient,
    pub(crate) defaults: Arc<Defaults>,
    session_key: String,
    handles: Arc<Mutex<HandleCache>>,
    /// Held while a sandbox is created because a call names none: calls at the same time share it.
    creating: Arc<tokio::sync::Mutex<()>>,
}

/// The sandbox of a call.
pub(crate) struct Opened {
    pub(crate) handle: SandboxHandle,
    /// Set if this call created it.
    created: Option<String>,
}

impl Opened {
    /// The result of the call, with the name of the sandbox if the call created it.
    pub(crate) fn result(&self, mut value: Value) -> Value {
        if let (Some(name), Some(members)) = (&self.created, value.as_object_mut()) {
            members.insert("sandbox_claim_name".to_owned(), json!(name));
        }
        value
    }
}

impl Sandboxes {
    pub fn new(client: SandboxClient, session_key: String, defaults: Defaults) -> Self {
        let defaults = Arc::new(defaults);
        Self { client, defaults, session_key, handles: Arc::default(), creating: Arc::default() }
    }

    pub(crate) async fn create(&self, session: &str, wanted: Create) -> Result<Value, ToolError> {
        let source = wanted.warmpool.unwrap_or_else(|| self.defaults.source.clone());
        let mut request = ClaimRequest::new(Source::Named(source), self.namespace(wanted.namespace.as_deref()));
        request.labels = wanted.labels.unwrap_or_default();
        request.pod_labels = wanted.pod_labels.unwrap_or_default();
        request.pod_annotations = wanted.pod_annotations.unwrap_or_default();
        request.expires_after = wanted.shutdown_after_seconds.map(Duration::from_secs);
        request.ready_timeout = Duration::from_secs(wanted.sandbox_ready_timeout);
        let (name, _) = self.claim(session, request).await?;
        Ok(json!({"sandbox_claim_name": name}))
    }

    async fn claim(&self, session: &str, mut request: ClaimRequest) -> Result<(String, SandboxHandle), ToolError> {
        if request.labels.insert(self.session_key.clone(), session.to_owned()).is_some() {
            return Err(ToolError::ReservedLabel(self.session_key.clone()));
        }
        request.annotations.extend(idle_annotation(request.expires_after));
        request.created_by = "mcp-server";
        let sandbox = self.client.claim(&request).await?;
        let name = sandbox.claim().unwrap_or_default().to_owned();
        let key = (session.to_owned(), sandbox.namespace().to_owned(), name.clone());
        self.cache_handle(key, sandbox.clone(), Some(Instant::now()));
        Ok((name, sandbox))
    }

    pub(crate) async fn delete(&self, session: &str, target: Delete) -> Result<Value, ToolError> {
        let namespace = self.namespace(target.namespace.as_deref()).to_owned();
        let name = target.sandbox_claim_name;
        if self.client.claims(&namespace, Some(&self.selector(session))).await?.contains(&name) {
            self.client.delete_claim(&namespace, &name, None).await?;
        } else if let Some(fork) = self.fork_metadata(session, &namespace, &name).await? {
            self.delete_fork(&namespace, &name, fork.uid).await?;
        } else {
            return Err(ToolError::NotFound { namespace, name });
        }
        self.handles().remove(&(session.to_owned(), namespace, name));
        Ok(Value::Null)
    }

    /// Names of the session's sandboxes in a namespace: its claims, and the Sandboxes made from snapshots.
    pub(crate) async fn names(&self, session: &str, namespace: &str) -> Result<Vec<String>, ToolError> {
        let mut names = self.client.claims(namespace, Some(&self.selector(session))).await?;
        match self.sandbox_api(namespace).list_metadata(&ListParams::default().labels(&self.selector(session))).await {
            Ok(forks) => names.extend(forks.items.into_iter().filter_map(|fork| fork.metadata.name)),
            // Who may not list Sandboxes still has the claims.
            Err(kube::Error::Api(status)) if status.code == 403 => {}
            Err(error) => return Err(api_error(format!("list sandboxes in `{namespace}`"), error)),
        }
        Ok(names)
    }

    /// The metadata of a Sandbox that the session made from a snapshot.
    async fn fork_metadata(&self, session: &str, namespace: &str, name: &str) -> Result<Option<ObjectMeta>, ToolError> {
        let found = self.sandbox_api(namespace).get_metadata_opt(name).await;
        let found = found.map_err(|error| api_error(format!("look up `{name}`"), error))?;
        Ok(found
            .filter(|fork| fork.labels().get(&self.session_key).is_some_and(|of| of == session))
            .map(|fork| fork.metadata))
    }

    /// Deletes a Sandbox that was made from a snapshot. A missing one is not an error.
    pub(crate) async fn delete_fork(&self, namespace: &str, name: &str, uid: Option<String>) -> Result<(), ToolError> {
        let only_this = Preconditions { uid, resource_version: None };
        let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::background() };
        match self.sandbox_api(namespace).delete(name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(api_error(format!("delete `{name}`"), error)),
        }
    }

    fn sandbox_api(&self, namespace: &str) -> Api<Sandbox> {
        Api::namespaced(self.client.cluster().client.clone(), namespace)
    }

    /// The sandbox that a call of up to `limit` refers to. A claim of another session is reported as not found.
    pub(crate) async fn open(&self, session: &str, target: &SandboxRef, limit: Duration) -> Result<Opened, ToolError> {
        let namespace = self.namespace(target.namespace.as_deref());
        if let Some(found) = self.find(session, namespace, target.sandbox_claim_name.as_deref(), limit).await? {
            return Ok(Opened { handle: found, created: None });
        }
        if let Some(name) = &target.sandbox_claim_name {
            self.handles().remove(&(session.to_owned(), namespace.to_owned(), name.clone()));
            return Err(ToolError::NotFound { namespace: namespace.to_owned(), name: name.clone() });
        }
        let _creating = self.creating.lock().await;
        if let Some(found) = self.find(session, namespace, None, limit).await? {
            return Ok(Opened { handle: found, created: None });
        }
        let mut request = ClaimRequest::new(Source::Named(self.defaults.source.clone()), namespace);
        request.expires_after = Some(DEFAULT_IDLE);
        let (name, handle) = self.claim(session, request).await?;
        Ok(Opened { handle, created: Some(name) })
    }

    /// A sandbox of the session: by name, or that of the newest claim.
    async fn find(
        &self,
        session: &str,
        namespace: &str,
        name: Option<&str>,
        limit: Duration,
    ) -> Result<Option<SandboxHandle>, ToolError> {
        let claims = self.client.claims_metadata(namespace, Some(&self.selector(session))).await?;
        let claim = match name {
            Some(name) => claims.into_iter().find(|claim| claim.name.as_deref() == Some(name)),
            None => claims
                .into_iter()
                .filter(|claim| claim.deletion_timestamp.is_none())
                .max_by_key(|claim| (claim.creation_timestamp.as_ref().map(|time| time.0), claim.name.clone())),
        };
        let (found, is_claim) = match (claim, name) {
            (Some(claim), _) => (claim, true),
            (None, None) => return Ok(None),
            (None, Some(name)) => match self.fork_metadata(session, namespace, name).await? {
                Some(fork) => (fork, false),
                None => return Ok(None),
            },
        };
        let name = found.name.unwrap_or_default();
        let key = (session.to_owned(), namespace.to_owned(), name.clone());
        let cached = self.handles().get(&key).map(|cached| (cached.handle.clone(), cached.extended));
        let (handle, extended) = match cached {
            Some(cached) => cached,
            None if is_claim => (self.client.find(namespace, &name).await?, None),
            None => (self.client.handle(namespace, &name, None)?, None),
        };
        let idle = found.annotations.and_then(|annotations| annotations.get(IDLE_SECONDS)?.parse().ok());
        let extended = match idle.map(Duration::from_secs) {
            Some(idle) => Some(self.extend(&handle, idle, extended, limit).await?),
            None => extended,
        };
        self.cache_handle(key, handle.clone(), extended);
        Ok(Some(handle))
    }

    /// Moves the end of the sandbox's lifetime to the idle time after the end of this call, at the latest. Returns when
    /// it was last moved.
    async fn extend(
        &self,
        handle: &SandboxHandle,
        idle: Duration,
        extended: Option<Instant>,
        limit: Duration,
    ) -> Result<Instant, ToolError> {
        match extended {
            Some(at) if at.elapsed() + limit <= idle / EXTEND_AFTER_PART => Ok(at),
            _ => {
                handle.expire_after(idle + limit).await?;
                Ok(Instant::now())
            }
        }
    }

    fn namespace<'a>(&'a self, given: Option<&'a str>) -> &'a str {
        given.unwrap_or(&self.defaults.namespace)
    }

    /// The labels of what a session makes.
    pub(crate) fn labels(&self, session: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(self.session_key.clone(), session.to_owned())])
    }

    pub(crate) fn selector(&self, session: &str) -> String {
        format!("{}={session}", self.session_key)
    }

    fn cache_handle(&self, key: (String, String, String), handle: SandboxHandle, extended: Option<Instant>) {
        let mut handles = self.handles();
        if handles.len() >= MAX_CACHED_HANDLES {
            handles.clear();
        }
        handles.insert(key, Cached { handle, extended });
    }

    fn handles(&self) -> MutexGuard<'_, HandleCache> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The annotation of a sandbox that is deleted after a time without a call.
pub(crate) fn idle_annotation(idle: Option<Duration>) -> Option<(String, String)> {
    idle.map(|idle| (IDLE_SECONDS.to_owned(), idle.as_secs().to_string()))
}

pub(crate) fn api_error(operation: String, source: kube::Error) -> ToolError {
    ToolError::Sandbox(ClientError::Api { operation, source: Box::new(source) })
}
