//! The server: opens the store and handles requests.

mod bootstrap;
mod in_process;

use std::{path::PathBuf, sync::Arc};

use agent_sandbox_streams::backend::NodeBackend;
use agent_sandbox_telemetry::audit::AuditLog;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio_util::sync::CancellationToken;

use crate::{
    controllers::Controllers,
    convert::{Conversions, Converter},
    documents::Documents,
    front::{
        AuthenticatingService, Front, RevokeError, WrittenKubeconfig,
        audit::{CreatedName, PolicyReason},
        auth::{
            Attributes, UserInfo,
            token_registry::{IssuedToken, TokenRegistry},
        },
        listener::{Credentials, Listener, ListenerConfig, ListenerError, UnsavedCredentials, kubeconfig::reachable},
        resource_metrics::UsageSource,
    },
    limits::ledger::Ledger,
    protobuf,
    registry::{Registry, Resource, compile_crd},
    render::{self, Body, BoxError},
    request::{RequestInfo, Verb, query_value},
    status::ApiError,
    store::{CommitError, FileError, Store, Stored},
    table::{IncludeObject, ResponseFormat},
    verbs::{self, MAX_BODY, MutatingAdmission, Payload},
};

use self::in_process::{InProcessService, OmitManagedFields, Sender};

/// Configuration of a server.
#[derive(Clone, Default)]
pub struct Config {
    /// The folder where objects are stored; `None` keeps them in memory only.
    pub data_dir: Option<PathBuf>,
    /// Do not wait for the disk. Only for temporary engines whose data is discarded.
    pub no_fsync: bool,
    /// Converts between versions of custom resources in this process.
    pub converter: Option<Arc<dyn Converter>>,
    /// Changes new objects in this process before they are stored.
    pub mutating_admission: Option<Arc<dyn MutatingAdmission>>,
    /// Gets a record of every request from the network, or for one of its users, that changes something or is refused.
    pub audit: Option<AuditLog>,
}

/// Why a server could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot start the store's writer")]
    Writer(#[source] std::io::Error),
    #[error(transparent)]
    Store(#[from] FileError),
    #[error("cannot prepare certificates and tokens")]
    Credentials(#[from] ListenerError),
    #[error("cannot create the objects every cluster has")]
    Bootstrap(#[source] CommitError),
}

/// State shared by all requests.
pub(crate) struct Core {
    pub(crate) store: Arc<Store>,
    pub(crate) registry: Registry,
    pub(crate) conversions: Conversions,
    pub(crate) mutating_admission: Option<Arc<dyn MutatingAdmission>>,
    pub(crate) front: Front,
    pub(crate) documents: Documents,
    pub(crate) controllers: Arc<Controllers>,
    pub(crate) ledger: Arc<Ledger>,
    /// `None` without a data folder.
    credentials_file: Option<PathBuf>,
}

impl Core {
    /// Updates the registry after an object was stored: a CRD changes what is served.
    pub(crate) fn on_stored(&self, resource: &Resource, object: &Stored) -> Result<(), ApiError> {
        if &*resource.storage == CRDS {
            let defined = compile_crd(&object.parse())
                .map_err(|e| ApiError::invalid(&resource.group, &resource.kind, &object.key.name, &e))?;
            self.registry.put(&object.key.name, defined);
        }
        Ok(())
    }

    /// Updates the registry after an object was removed.
    pub(crate) fn on_removed(&self, resource: &Resource, object: &Stored) {
        if &*resource.storage == CRDS {
            self.registry.remove(&object.key.name);
        }
    }

    /// Returns `error` once the queued writes that it was decided from are durable, or the storage error if they fail:
    /// no response may depend on state that could be lost.
    pub(crate) async fn error_once_durable(&self, error: ApiError) -> ApiError {
        match self.store.flush().await {
            Ok(()) => error,
            Err(failure) => self.storage_error(&failure),
        }
    }

    /// The response to a write that the store refused.
    pub(crate) async fn commit_error(
        &self,
        error: CommitError,
        missing_or_exists: impl FnOnce() -> ApiError,
    ) -> ApiError {
        match error {
            CommitError::Exists | CommitError::Missing | CommitError::Changed(_) => {
                self.error_once_durable(missing_or_exists()).await
            }
            CommitError::Refused(refusal) => self.error_once_durable(*refusal).await,
            other => self.storage_error(&other),
        }
    }

    pub(crate) fn storage_error(&self, error: &CommitError) -> ApiError {
        match error {
            CommitError::Closed => ApiError::unavailable("the server is shutting down"),
            other => ApiError::internal(other),
        }
    }
}

pub(crate) const CRDS: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// A running API server. Cheap to clone; the store closes when the last clone is dropped.
#[derive(Clone)]
pub struct ApiServer {
    core: Arc<Core>,
    closer: Arc<Closer>,
}

struct Closer {
    store: Arc<Store>,
    controllers: tokio::task::JoinHandle<()>,
}

impl Closer {
    fn close(&self) {
        self.controllers.abort();
        self.store.close();
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.close();
    }
}

impl ApiServer {
    pub async fn open(config: Config) -> Result<Self, OpenError> {
        let registry = Registry::default();
        let store = match &config.data_dir {
            None => Store::in_memory().map_err(OpenError::Writer)?,
            Some(folder) => open_folder(folder, !config.no_fsync, &registry)?,
        };
        let (credentials, unsaved) = credentials(config.data_dir.as_deref())?;
        let tokens = match &config.data_dir {
            Some(folder) => TokenRegistry::load(&folder.join("tokens.json"))?,
            None => TokenRegistry::default(),
        };
        let ledger = Arc::new(Ledger::new(config.mutating_admission.clone()));
        let core = Arc::new(Core {
            store: store.clone(),
            registry,
            conversions: Conversions::new(config.converter),
            ledger: ledger.clone(),
            mutating_admission: config.mutating_admission,
            front: Front::new(credentials, tokens, &store, config.audit),
            credentials_file: config.data_dir.as_deref().map(credentials_file),
            documents: Documents::default(),
            controllers: Arc::new(Controllers::new(ledger)),
        });
        core.controllers.load(&core);
        let observer = core.controllers.clone();
        store.observe(move |storage, event, moment| observer.observe(storage, event, moment));
        let controllers = tokio::spawn(crate::controllers::run(Arc::downgrade(&core)));
        let server = Self { core, closer: Arc::new(Closer { store, controllers }) };
        // Saving the credentials and bootstrapping both wait for the disk, so they run concurrently.
        let saved = tokio::task::spawn_blocking(|| unsaved.map_or(Ok(()), UnsavedCredentials::save));
        bootstrap::run(&server.core).await?;
        saved.await.map_err(|e| OpenError::Writer(e.into()))??;
        Ok(server)
    }

    /// Finishes queued writes, refuses new ones and releases the data folder, even while clients still exist.
    pub fn close(&self) {
        self.closer.close();
    }

    /// The resources that are currently served.
    pub fn registry(&self) -> &Registry {
        &self.core.registry
    }

    /// The stored objects.
    pub fn store(&self) -> &Arc<Store> {
        &self.core.store
    }

    /// An in-process client with administrator permissions: no socket, no serialization beyond the objects themselves.
    pub fn client(&self) -> kube::Client {
        self.in_process_client(UserInfo::administrator(), Sender::Component, false)
    }

    /// An in-process client that acts for a user of the network: the audit log has what the user does with it.
    pub fn client_as(&self, user: UserInfo) -> kube::Client {
        self.in_process_client(user, Sender::User, false)
    }

    /// Like [`client`](Self::client), for components of this process that watch a lot and never read `managedFields`:
    /// the longer entries are left empty. A client that writes such an object back with PUT would delete those entries.
    pub fn client_without_managed_fields(&self) -> kube::Client {
        self.in_process_client(UserInfo::administrator(), Sender::Component, true)
    }

    fn in_process_client(&self, user: UserInfo, sender: Sender, omit_managed_fields: bool) -> kube::Client {
        let service = InProcessService { server: self.clone(), user: Arc::new(user), sender, omit_managed_fields };
        kube::Client::new(service, "default")
    }

    /// Sets the node that serves logs, exec, attach and port-forward of Pods.
    pub fn attach_node(&self, backend: impl NodeBackend) {
        let backend: Arc<dyn NodeBackend> = Arc::new(backend);
        self.attach_node_for(move |_| backend.clone());
    }

    /// Like [`attach_node`](Self::attach_node), with a backend of its own for each caller: `backend` gets the user that
    /// the API server authenticated.
    pub fn attach_node_for(&self, backend: impl Fn(&UserInfo) -> Arc<dyn NodeBackend> + Send + Sync + 'static) {
        self.core.front.attach_node(Box::new(backend));
    }

    /// Sets where the resource metrics API reads its counters.
    pub fn attach_usage(&self, source: impl UsageSource) {
        self.core.front.attach_usage(Arc::new(source));
    }

    /// Whether RBAC lets `user` do what `attributes` describe. Reads the current roles and bindings, without a cache.
    pub fn allows(&self, user: &UserInfo, attributes: &Attributes) -> bool {
        self.core.front.allows(user, attributes)
    }

    /// Listens on the network: TLS, a token for every request, and a kubeconfig.
    pub async fn listen(&self, config: ListenerConfig) -> Result<Listener, ListenerError> {
        let server = self.clone();
        let (name, path) = (config.name.clone(), config.kubeconfig.clone());
        let credentials = self.core.front.credentials();
        let stop = CancellationToken::new();
        let service = AuthenticatingService::new(server, &config.extra_names, stop.clone())?;
        let listener = Listener::start(config, &credentials, stop, service).await?;
        if let Some(path) = path {
            let address = reachable(listener.address());
            self.core.front.add_kubeconfig(WrittenKubeconfig { path, name, address });
        }
        Ok(listener)
    }

    /// The tokens of ServiceAccounts that were requested, are valid and not bound to a Pod.
    pub fn issued_tokens(&self) -> Vec<IssuedToken> {
        self.core.front.issued_tokens()
    }

    /// Revokes a token of a ServiceAccount, given by its id or by itself. Returns its id.
    pub fn revoke_token(&self, id_or_token: &str) -> Result<String, RevokeError> {
        self.core.front.revoke_token(id_or_token)
    }

    /// Replaces the administrator's token, also in the kubeconfigs that the listeners wrote. The old token is refused
    /// from now on.
    pub fn rotate_admin_token(&self) -> Result<(), ListenerError> {
        self.core.front.rotate_admin_token(self.core.credentials_file.as_deref())
    }

    /// Ends exec, attach and port-forward sessions; called before the process exits.
    pub async fn close_streams(&self) {
        self.core.front.close_streams().await;
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn front(&self) -> &Front {
        &self.core.front
    }

    /// Handles a request of an authenticated user, if RBAC allows it.
    pub async fn handle<B>(&self, user: &UserInfo, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let accept = request.headers().get(http::header::ACCEPT);
        let yaml = accept.is_some_and(|value| value.as_bytes().starts_with(b"application/yaml"));
        match self.try_handle(user, request).await {
            Ok(response) => response,
            Err(error) if yaml => render::yaml_error_response(&error),
            Err(error) => render::error_response(&error),
        }
    }

    async fn try_handle<B>(&self, user: &UserInfo, request: Request<B>) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let info = RequestInfo::parse(&parts.method, &parts.uri)?;
        let front = &self.core.front;
        front.authorize(user, &info)?;
        let RequestInfo::Resource(wanted) = info else {
            return self.core.documents.respond(&self.core.registry, &parts);
        };
        if let Some(kind) = Front::stream_kind(&wanted) {
            return front.stream(&self.core, user, kind, &wanted, &mut parts).await;
        }
        let form = ResponseFormat::negotiate(&parts.headers).map(|form| match form {
            ResponseFormat::Json if parts.extensions.get::<OmitManagedFields>().is_some() => ResponseFormat::Lean,
            other => other,
        });
        let include = IncludeObject::read(query_value(&parts.uri, "includeObject").as_deref())?;
        let body = protobuf::to_json(&mut parts, collect(body).await?)?;
        let endpoint = self
            .core
            .registry
            .snapshot()
            .endpoint(&wanted.group, &wanted.version, &wanted.resource)
            .ok_or_else(|| self.no_such_resource(&wanted.group))?;
        let form = form.map_err(|e| if endpoint.resource.is_custom() { e } else { e.with_empty_details() })?;
        let reply = if let Some(reviewed) = front.review(&self.core.store, user, &wanted, &parts, &body) {
            reviewed?
        } else if let Some(metrics) = front.resource_metrics(&self.core, &endpoint, &wanted, &parts.uri).await {
            metrics?
        } else {
            verbs::dispatch(&self.core, user, &wanted, &parts, body).await?
        };
        let created = match &reply.payload {
            Payload::Object(object) if wanted.verb == Verb::Create && wanted.name.is_empty() => {
                object.name().map(CreatedName)
            }
            _ => None,
        };
        let reason = reply.audit_reason.clone().map(PolicyReason);
        let mut response = render::reply_response(&endpoint, reply, form, include);
        if let Some(reason) = reason {
            response.extensions_mut().insert(reason);
        }
        if let Some(name) = created {
            response.extensions_mut().insert(name);
        }
        Ok(response)
    }
}

impl ApiServer {
    /// 404 for a resource that is not served: in the form of the handler of built-in groups, or of the router.
    fn no_such_resource(&self, group: &str) -> ApiError {
        let known = self
            .core
            .registry
            .snapshot()
            .resources()
            .iter()
            .any(|resource| resource.group == group && !resource.is_custom());
        if known { ApiError::no_such_path() } else { ApiError::page_not_found() }
    }
}

/// Opens the store in a folder. CRDs are compiled first: their schemas are needed to read custom objects.
fn open_folder(folder: &std::path::Path, fsync: bool, registry: &Registry) -> Result<Arc<Store>, OpenError> {
    let register_crd = |raw: &[u8]| {
        let crd: serde_json::Value = serde_json::from_slice(raw).map_err(|e| e.to_string())?;
        let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let resource = compile_crd(&crd).map_err(|errors| {
            let why = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            format!("the CustomResourceDefinition {name} is not valid: {why}")
        })?;
        registry.put(&name, resource);
        Ok(())
    };
    let known = |storage: &str| registry.snapshot().by_storage(storage).cloned();
    Ok(Store::open(folder, fsync, CRDS, register_crd, known)?)
}

fn credentials_file(folder: &std::path::Path) -> PathBuf {
    folder.join("credentials.json")
}

/// Certificates and tokens are stored in the data folder; without one they are generated and kept in memory.
fn credentials(data_dir: Option<&std::path::Path>) -> Result<(Credentials, Option<UnsavedCredentials>), ListenerError> {
    let now = jiff::Timestamp::now();
    match data_dir {
        Some(folder) => Credentials::load_or_generate(&credentials_file(folder), "embedded", now),
        None => Ok((Credentials::generate("embedded", now)?, None)),
    }
}

/// Timeout for receiving a request body, as in Kubernetes.
const BODY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Reads a request body, up to the maximum size that Kubernetes accepts.
pub async fn collect<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(MAX_BODY)),
        Ok(Err(error)) => Err(ApiError::bad_request(format!("cannot read the request body: {error}"))),
        Err(_) => Err(ApiError::bad_request(format!("the request body did not arrive within {BODY_TIMEOUT:?}"))),
    }
}
