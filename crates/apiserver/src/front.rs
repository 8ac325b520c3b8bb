//! What a request meets before and beside the verbs: authorisation, documents that are no objects, reviews, streams.
//!
//! | module | does |
//! |---|---|
//! | [`policy`] | keeps the compiled RBAC policy in step with the stored roles |
//! | [`paths`] | discovery, OpenAPI, version and health |
//! | [`special`] | reviews, token requests and the streaming subresources of Pods |
//! | [`door`] | authenticates requests from the network |
//! | [`loopback`] | upgrades for the in-process client |

mod door;
mod loopback;
mod paths;
mod policy;
mod special;

use std::sync::Arc;

pub(crate) use door::Door;
pub(crate) use loopback::upgrade;

use arc_swap::ArcSwap;
use serde_json::Value;

use crate::auth::authenticate::{Authenticator, Objects};
use crate::auth::escalation;
use crate::auth::rbac::{AccessTarget, Attributes};
use crate::identity::UserInfo;
use crate::node::{NoNode, NodeBackend};
use crate::registry::Resource;
use crate::request::{ResourceRequest, Target, Verb};
use crate::serve::Credentials;
use crate::status::ApiError;
use crate::store::{ObjectKey, Store};
use crate::streams::handler::Streams;

use self::paths::Documents;
use self::policy::Policies;

/// State of everything in front of the verbs.
pub(crate) struct Front {
    pub(crate) credentials: Credentials,
    authenticator: Authenticator,
    objects: Arc<StoredObjects>,
    policies: Policies,
    documents: Documents,
    backend: ArcSwap<BackendFor>,
    streams: Streams,
}

/// Makes the backend that serves one caller's streams.
pub(crate) type BackendFor = Box<dyn Fn(&UserInfo) -> Arc<dyn NodeBackend> + Send + Sync>;

impl Front {
    pub(crate) fn new(credentials: Credentials, store: &Arc<Store>) -> Self {
        let objects = Arc::new(StoredObjects(store.clone()));
        let no_node: BackendFor = Box::new(|_| Arc::new(NoNode));
        Self {
            authenticator: Authenticator::new(credentials.admin_token(), credentials.signing_key(), objects.clone()),
            credentials,
            objects,
            policies: Policies::new(store.clone()),
            documents: Documents::default(),
            streams: Streams::default(),
            backend: ArcSwap::from_pointee(no_node),
        }
    }

    pub(crate) fn attach_node(&self, backend: BackendFor) {
        self.backend.store(Arc::new(backend));
    }

    pub(crate) fn allows(&self, user: &UserInfo, attributes: &Attributes) -> bool {
        user.is_administrator() || self.policies.current().allows(user, attributes).is_some()
    }

    pub(crate) async fn close_streams(&self) {
        self.streams.close().await;
    }

    /// Whether `user` may store this role or binding; other kinds always pass.
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
        escalation::check(&self.policies.current(), user, &resource.plural, old, object)
    }

    /// Whether `user` may do what `target` asks for.
    pub(crate) fn authorize(&self, user: &UserInfo, target: &Target) -> Result<(), ApiError> {
        if user.is_administrator() {
            return Ok(());
        }
        let policy = self.policies.current();
        match target {
            Target::NonResource { path, verb } => {
                let wanted = Attributes { verb: verb.clone(), target: AccessTarget::Path(path.clone()) };
                match policy.allows(user, &wanted) {
                    Some(_) => Ok(()),
                    None => Err(forbidden_path(user, verb, path)),
                }
            }
            Target::Resource(request) => {
                let allowed = |verb: &str| policy.allows(user, &attributes(request, verb)).is_some();
                let verb = request.verb.as_str();
                // A WebSocket upgrade arrives as a GET, but runs commands all the same.
                let connects = matches!(request.subresource.as_str(), "exec" | "attach" | "portforward");
                let needed = if connects { Verb::Create.as_str() } else { verb };
                if allowed(needed) { Ok(()) } else { Err(forbidden(user, request, needed)) }
            }
        }
    }
}

fn attributes(request: &ResourceRequest, verb: &str) -> Attributes {
    Attributes {
        verb: verb.to_owned(),
        target: AccessTarget::Resource {
            group: request.group.clone(),
            resource: request.resource.clone(),
            subresource: request.subresource.clone(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
        },
    }
}

fn forbidden(user: &UserInfo, request: &ResourceRequest, verb: &str) -> ApiError {
    let resource = match request.subresource.as_str() {
        "" => request.resource.clone(),
        subresource => format!("{}/{subresource}", request.resource),
    };
    let place = match request.namespace.as_str() {
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
    ApiError::new(http::StatusCode::FORBIDDEN, "Forbidden", message)
}

/// Core objects by name, for tokens that are bound to them.
struct StoredObjects(Arc<Store>);

impl Objects for StoredObjects {
    fn uid(&self, resource: &str, namespace: &str, name: &str) -> Option<String> {
        let found = self.0.get(&format!("/{resource}").into(), &ObjectKey::new(namespace, name))?;
        Some(found.uid().to_owned())
    }
}
