//! The server: opens the store, serves what is stored, and turns every request into a response.

use std::{
    convert::Infallible,
    path::PathBuf,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::{
    admission::Completer,
    auth::Attributes,
    controllers::Controllers,
    convert::{Conversions, Converter},
    front::{self, Door, Front},
    identity::UserInfo,
    node::NodeBackend,
    protobuf,
    registry::{Registry, Resource, compile_crd},
    render::{self, Body, BoxError},
    request::{Target, query_value},
    serve::{Credentials, Listener, ListenerConfig, ServeError, Unsaved},
    status::ApiError,
    store::{CommitError, FileError, Store, Stored},
    table::{Form, IncludeObject},
    verbs::{self, MAX_BODY},
};

/// How a server is opened.
#[derive(Clone, Default)]
pub struct Config {
    /// Where objects are kept; `None` keeps them in memory only.
    pub data_dir: Option<PathBuf>,
    /// Do not wait for the disk. Only for engines that are thrown away.
    pub no_fsync: bool,
    /// Converts between versions of custom resources in this process.
    pub converter: Option<Arc<dyn Converter>>,
    /// Completes new objects in this process.
    pub completer: Option<Arc<dyn Completer>>,
}

/// Why a server did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot start the store's writer")]
    Writer(#[source] std::io::Error),
    #[error(transparent)]
    Store(#[from] FileError),
    #[error("cannot prepare certificates and tokens")]
    Credentials(#[from] ServeError),
    #[error("cannot create the objects every cluster has")]
    Bootstrap(#[source] CommitError),
}

/// State shared by all requests.
pub(crate) struct Core {
    pub(crate) store: Arc<Store>,
    pub(crate) registry: Registry,
    pub(crate) conversions: Conversions,
    pub(crate) completer: Option<Arc<dyn Completer>>,
    pub(crate) front: Front,
    pub(crate) controllers: Arc<Controllers>,
}

impl Core {
    /// Takes notice of a stored object: CRDs change what is served.
    pub(crate) fn committed(&self, resource: &Resource, object: &Stored) -> Result<(), ApiError> {
        if &*resource.storage == CRDS {
            let defined = compile_crd(&object.parse())
                .map_err(|e| ApiError::invalid(&resource.group, &resource.kind, &object.key.name, &e))?;
            self.registry.put(&object.key.name, defined);
        }
        Ok(())
    }

    /// Takes notice of a removed object.
    pub(crate) fn removed(&self, resource: &Resource, object: &Stored) {
        if &*resource.storage == CRDS {
            self.registry.remove(&object.key.name);
        }
    }

    /// An answer decided on queued state is given only once that state is durable.
    pub(crate) async fn settled(&self, error: ApiError) -> ApiError {
        match self.store.settle().await {
            Ok(()) => error,
            Err(failure) => self.storage_error(&failure),
        }
    }

    /// The client's view of a refused write.
    pub(crate) async fn refusal(&self, error: CommitError, missing_or_exists: impl FnOnce() -> ApiError) -> ApiError {
        match error {
            CommitError::Exists | CommitError::Missing | CommitError::Changed(_) => {
                self.settled(missing_or_exists()).await
            }
            CommitError::Refused(refusal) => self.settled(*refusal).await,
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

/// A running API. Cheap to clone; the store closes when the last clone goes.
#[derive(Clone)]
pub struct ApiServer {
    core: Arc<Core>,
    closer: Arc<Closer>,
}

struct Closer {
    store: Arc<Store>,
    housekeeping: tokio::task::JoinHandle<()>,
}

impl Closer {
    fn close(&self) {
        self.housekeeping.abort();
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
        let core = Arc::new(Core {
            store: store.clone(),
            registry,
            conversions: Conversions::new(config.converter),
            completer: config.completer,
            front: Front::new(credentials, &store),
            controllers: Arc::default(),
        });
        core.controllers.load(&core);
        let controllers = core.controllers.clone();
        store.observe(move |storage, event, moment| controllers.observe(storage, event, moment));
        let housekeeping = tokio::spawn(crate::controllers::run(Arc::downgrade(&core)));
        let server = Self { core, closer: Arc::new(Closer { store, housekeeping }) };
        // Both wait for the disk.
        let saved = tokio::task::spawn_blocking(|| unsaved.map_or(Ok(()), Unsaved::save));
        crate::bootstrap::run(&server.core).await?;
        saved.await.map_err(|e| OpenError::Writer(e.into()))??;
        Ok(server)
    }

    /// Finishes queued writes, refuses new ones and lets go of the data folder, although clients may still exist.
    pub fn close(&self) {
        self.closer.close();
    }

    /// What is served right now.
    pub fn registry(&self) -> &Registry {
        &self.core.registry
    }

    /// The objects themselves.
    pub fn store(&self) -> &Arc<Store> {
        &self.core.store
    }

    /// An in-process client with every right. No socket, no serialisation beyond the objects themselves.
    pub fn client(&self) -> kube::Client {
        self.client_as(UserInfo::administrator())
    }

    pub fn client_as(&self, user: UserInfo) -> kube::Client {
        self.in_process(user, false)
    }

    /// Like [`client`](Self::client), for parts of this program that watch a lot and never look at `managedFields`: the longer records
    /// are left empty. Who puts an object back that it got so would lose them.
    pub fn lean_client(&self) -> kube::Client {
        self.in_process(UserInfo::administrator(), true)
    }

    fn in_process(&self, user: UserInfo, lean: bool) -> kube::Client {
        kube::Client::new(InProcess { server: self.clone(), user: Arc::new(user), lean }, "default")
    }

    /// Hands the Pods' logs, commands and ports to whoever runs the Pods.
    pub fn attach_node(&self, backend: impl NodeBackend) {
        let backend: Arc<dyn NodeBackend> = Arc::new(backend);
        self.attach_node_for(move |_| backend.clone());
    }

    /// Like [`attach_node`](Self::attach_node), with a backend of its own for each caller: `backend` gets the user that
    /// the API server authenticated.
    pub fn attach_node_for(&self, backend: impl Fn(&UserInfo) -> Arc<dyn NodeBackend> + Send + Sync + 'static) {
        self.core.front.attach_node(Box::new(backend));
    }

    /// Whether RBAC lets `user` do what `attributes` describe. Reads the current roles and bindings, without a cache.
    pub fn allows(&self, user: &UserInfo, attributes: &Attributes) -> bool {
        self.core.front.allows(user, attributes)
    }

    /// Opens the network front door: TLS, a token for every request, and a kubeconfig.
    pub async fn listen(&self, config: ListenerConfig) -> Result<Listener, ServeError> {
        let server = self.clone();
        Listener::start(config, &self.core.front.credentials, |stop| Door::new(server, stop)).await
    }

    /// Ends exec, attach and port-forward sessions; for the end of the process.
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

    /// Answers a request of an authenticated user, if roles and bindings allow it.
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
        let target = Target::parse(&parts.method, &parts.uri)?;
        let front = &self.core.front;
        front.authorize(user, &target)?;
        let Target::Resource(wanted) = target else { return front.document(&self.core.registry, &parts) };
        if let Some(kind) = Front::stream_kind(&wanted) {
            return front.stream(&self.core.store, user, kind, &wanted, &mut parts).await;
        }
        let form = Form::negotiate(&parts.headers).map(|form| match form {
            Form::Json if parts.extensions.get::<Lean>().is_some() => Form::Lean,
            other => other,
        });
        let include = IncludeObject::read(query_value(&parts.uri, "includeObject").as_deref())?;
        let body = protobuf::to_json(&mut parts, collect(body).await?)?;
        let endpoint = self
            .core
            .registry
            .snapshot()
            .endpoint(&wanted.group, &wanted.version, &wanted.resource)
            .ok_or_else(ApiError::no_such_path)?;
        let form = form.map_err(|e| if endpoint.resource.is_custom() { e } else { e.with_empty_details() })?;
        let reply = match front.review(&self.core.store, user, &wanted, &parts, &body) {
            Some(answer) => answer?,
            None => verbs::dispatch(&self.core, user, &wanted, &parts, body).await?,
        };
        Ok(render::reply_response(&endpoint, reply, form, include))
    }
}

/// Opens the store in a folder. Custom resources must be known before their objects are read.
fn open_folder(folder: &std::path::Path, fsync: bool, registry: &Registry) -> Result<Arc<Store>, OpenError> {
    let learn = |raw: &[u8]| {
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
    Ok(Store::open(folder, fsync, CRDS, learn, known)?)
}

/// Certificates and tokens live beside the objects, or nowhere when these do.
fn credentials(data_dir: Option<&std::path::Path>) -> Result<(Credentials, Option<Unsaved>), ServeError> {
    let now = jiff::Timestamp::now();
    match data_dir {
        Some(folder) => Credentials::load_or_generate(&folder.join("credentials.json"), "embedded", now),
        None => Ok((Credentials::generate("embedded", now)?, None)),
    }
}

/// How long a request body may take to arrive, as in Kubernetes.
const BODY_LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Reads a request body, up to the size Kubernetes accepts.
pub async fn collect<B>(body: B) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    match tokio::time::timeout(BODY_LIMIT, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(MAX_BODY)),
        Ok(Err(error)) => Err(ApiError::bad_request(format!("cannot read the request body: {error}"))),
        Err(_) => Err(ApiError::bad_request(format!("the request body did not arrive within {BODY_LIMIT:?}"))),
    }
}

/// Marks requests of a lean client.
#[derive(Clone, Copy)]
struct Lean;

/// The server as the service behind a `kube::Client`.
struct InProcess {
    server: ApiServer,
    user: Arc<UserInfo>,
    lean: bool,
}

impl tower::Service<Request<kube::client::Body>> for InProcess {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<kube::client::Body>) -> Self::Future {
        let server = self.server.clone();
        let user = self.user.clone();
        if request.headers().contains_key(http::header::UPGRADE) {
            return Box::pin(async move { Ok(front::upgrade(server, user, request).await) });
        }
        if self.lean {
            request.extensions_mut().insert(Lean);
        }
        Box::pin(async move { Ok(server.handle(&user, request).await) })
    }
}
