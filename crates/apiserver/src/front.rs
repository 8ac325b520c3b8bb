//! What happens to a request before the verbs: listening, TLS, authentication, authorization; and the requests that are
//! not verbs on stored objects: reviews and Pod streams.
//!
//! | module | does |
//! |---|---|
//! | [`listener`] | TLS, connections, certificates, kubeconfig |
//! | `service` | authenticates requests from the network |
//! | [`auth`] | tokens, impersonation, RBAC, privilege escalation checks |
//! | `reviews` | access reviews, token reviews and token requests |
//! | `audit` | records of who did what |
//! | `token_admin` | lists and revokes tokens, replaces the administrator's |
//! | `pod_streams` | log, exec, attach and portforward of Pods |
//! | `resource_metrics` | CPU and memory of Pods and nodes |

pub(crate) mod audit;
pub mod auth;
pub mod listener;
mod pod_streams;
pub mod resource_metrics;
mod reviews;
mod service;
mod token_admin;

use std::sync::Arc;

use agent_sandbox_streams::backend::{NoNode, NodeBackend};
use agent_sandbox_streams::server::StreamServer;
use agent_sandbox_telemetry::audit::AuditLog;
use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

pub(crate) use self::service::AuthenticatingService;

use self::auth::UserInfo;
use self::auth::authenticate::{Authenticator, Objects};
use self::auth::escalation;
use self::auth::policy_cache::PolicyCache;
use self::auth::rbac::{AccessTarget, Attributes};
use self::auth::token_registry::TokenRegistry;
use self::listener::Credentials;
use self::resource_metrics::{Sampler, UsageSource};
pub use self::token_admin::RevokeError;
pub(crate) use self::token_admin::WrittenKubeconfig;
use crate::registry::{Endpoint, Resource};
use crate::request::{RequestInfo, ResourceRequest, Verb};
use crate::server::Core;
use crate::status::ApiError;
use crate::store::{ObjectKey, Store};
use crate::verbs::Reply;

/// State of authentication, authorization and Pod streams.
pub(crate) struct Front {
    credentials: Mutex<Credentials>,
    authenticator: Authenticator,
    tokens: Arc<TokenRegistry>,
    /// Kubeconfigs with the administrator's token, which are written again when it is replaced.
    kubeconfigs: Mutex<Vec<WrittenKubeconfig>>,
    objects: Arc<StoredObjects>,
    policy: PolicyCache,
    backend: ArcSwap<BackendFor>,
    streams: StreamServer,
    usage: Sampler,
    /// Gets a record of every request from the network that changes something or is refused.
    pub(crate) audit: Option<AuditLog>,
}

/// Makes the backend that serves one caller's streams.
pub(crate) type BackendFor = Box<dyn Fn(&UserInfo) -> Arc<dyn NodeBackend> + Send + Sync>;

impl Front {
    pub(crate) fn new(
        credentials: Credentials,
        tokens: TokenRegistry,
        store: &Arc<Store>,
        audit: Option<AuditLog>,
    ) -> Self {
        let tokens = Arc::new(tokens);
        let objects = Arc::new(StoredObjects(store.clone()));
        let no_node: BackendFor = Box::new(|_| Arc::new(NoNode));
        Self {
            authenticator: Authenticator::new(credentials.admin_token(), credentials.signing_key(), objects.clone())
                .with_registry(tokens.clone()),
            credentials: Mutex::new(credentials),
            tokens,
            kubeconfigs: Mutex::default(),
            objects,
            policy: PolicyCache::new(store.clone()),
            streams: StreamServer::default(),
            usage: Sampler::default(),
            audit,
            backend: ArcSwap::from_pointee(no_node),
        }
    }

    pub(crate) fn attach_node(&self, backend: BackendFor) {
        self.backend.store(Arc::new(backend));
    }

    pub(crate) fn attach_usage(&self, source: Arc<dyn UsageSource>) {
        self.usage.attach(source);
    }

    /// Handles a request for resource metrics; `None` for all other requests.
    pub(crate) async fn resource_metrics(
        &self,
        core: &Core,
        endpoint: &Endpoint,
        request: &ResourceRequest,
        uri: &http::Uri,
    ) -> Option<Result<Reply, ApiError>> {
        if request.group != resource_metrics::GROUP {
            return None;
        }
        Some(resource_metrics::respond(&self.usage, core, endpoint, request, uri).await)
    }

    pub(crate) fn allows(&self, user: &UserInfo, attributes: &Attributes) -> bool {
        self.is_still_valid(user)
            && (user.is_administrator() || self.policy.current().allows(user, attributes).is_some())
    }

    /// True while the token of a user, and what it is bound to, are valid.
    pub(crate) fn is_still_valid(&self, user: &UserInfo) -> bool {
        self.authenticator.is_still_valid(user, Timestamp::now())
    }

    pub(crate) async fn close_streams(&self) {
        self.streams.close().await;
    }

    /// Fails if `user` may not store this role or binding because it would grant permissions that `user` does not have.
    /// Other kinds always pass.
    pub(crate) fn check_escalation(
        &self,
        user: &UserInfo,
        resource: &Resource,
        old: Option<&Value>,
        object: &Value,
    ) -> Result<(), ApiError> {
        if user.is_administrator() || resource.group != "rbac.authorization.k8s.io" {
            return Ok(());
        }
        escalation::check(&self.policy.current(), user, &resource.plural, old, object)
    }

    /// Fails if RBAC does not allow `user` to make this request.
    pub(crate) fn authorize(&self, user: &UserInfo, request: &RequestInfo) -> Result<(), ApiError> {
        if user.is_administrator() {
            return Ok(());
        }
        let policy = self.policy.current();
        match request {
            RequestInfo::NonResource { path, verb } => {
                let wanted = Attributes { verb: verb.clone(), target: AccessTarget::Path(path.clone()) };
                match policy.allows(user, &wanted) {
                    Some(_) => Ok(()),
                    None => Err(forbidden_path(user, verb, path)),
                }
            }
            RequestInfo::Resource(request) => {
                let allowed = |verb: &str| policy.allows(user, &attributes(request, verb)).is_some();
                let verb = request.verb.as_str();
                // A WebSocket upgrade is a GET request, but these subresources need the permission to create.
                let connects = matches!(request.subresource.as_str(), "exec" | "attach" | "portforward");
                let needed = if connects { Verb::Create.as_str() } else { verb };
                if allowed(needed) { Ok(()) } else { Err(forbidden(user, request, needed)) }
            }
        }
    }
}

pub(crate) fn attributes(request: &ResourceRequest, verb: &str) -> Attributes {
    Attributes {
        verb: verb.to_owned(),
        target: AccessTarget::Resource {
            group: request.group.clone(),
            resource: request.resource.clone(),
            subresource: request.subresource.clone(),
            namespace: access_namespace(request).to_owned(),
            name: request.name.clone(),
        },
    }
}

/// The namespace that access is decided in. A Namespace object counts as part of itself, as in Kubernetes, so that a
/// user with rights in a namespace may read it.
fn access_namespace(request: &ResourceRequest) -> &str {
    match (request.group.as_str(), request.resource.as_str()) {
        ("", "namespaces") => &request.name,
        _ => &request.namespace,
    }
}

fn forbidden(user: &UserInfo, request: &ResourceRequest, verb: &str) -> ApiError {
    let resource = match request.subresource.as_str() {
        "" => request.resource.clone(),
        subresource => format!("{}/{subresource}", request.resource),
    };
    let place = match access_namespace(request) {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let why = format!(
        "User {:?} cannot {verb} resource {resource:?} in API group {:?} {place}",
        user.username, request.group
    );
    ApiError::forbidden(&request.group, &request.resource, &request.name, &why)
}

fn forbidden_path(user: &UserInfo, verb: &str, path: &str) -> ApiError {
    let message = format!("forbidden: User {:?} cannot {verb} path {path:?}", user.username);
    ApiError::new(http::StatusCode::FORBIDDEN, "Forbidden", message).with_empty_details()
}

/// A stored object of the core group, or 404.
fn stored_object(store: &Store, resource: &str, namespace: &str, name: &str) -> Result<Value, ApiError> {
    let found = store.get(&format!("/{resource}").into(), &ObjectKey::new(namespace, name));
    found.map(|object| object.parse()).ok_or_else(|| ApiError::not_found("", resource, name))
}

/// Looks up the objects of the core group that tokens are bound to.
struct StoredObjects(Arc<Store>);

impl Objects for StoredObjects {
    fn uid(&self, resource: &str, namespace: &str, name: &str) -> Option<String> {
        let found = self.0.get(&format!("/{resource}").into(), &ObjectKey::new(namespace, name))?;
        Some(found.uid().to_owned())
    }
}
