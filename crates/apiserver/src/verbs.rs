//! The verbs on resources: from a parsed request to a reply that is not rendered yet.
//!
//! | module | does |
//! |---|---|
//! | `read` | get, list, and the start of a watch |
//! | [`watch`] | the events of a watch |
//! | `create`, `update`, `patch`, `delete` | the writes |
//! | `subresources` | scale, binding, eviction, finalize |
//! | `admission` | pruning, defaults, validation, generation and `managedFields` of an object to be stored |
//! | `namespace_rules` | what the namespace allows: LimitRanges, Pod Security labels, ResourceQuotas |
//! | `body`, `metadata`, `service_addresses` | request bodies, object metadata, cluster IPs |

use std::sync::Arc;

use bytes::Bytes;
use http::{StatusCode, request::Parts};
use serde_json::Value;

use crate::{
    convert::View,
    front::auth::UserInfo,
    registry::Endpoint,
    request::{ResourceRequest, Verb},
    server::Core,
    status::ApiError,
    store::ObjectKey,
};

mod admission;
mod body;
mod create;
mod delete;
mod metadata;
mod namespace_rules;
mod patch;
mod read;
mod service_addresses;
mod subresources;
mod update;
pub mod watch;

pub use admission::MutatingAdmission;
pub use body::MAX_BODY;
pub(crate) use body::decode as decode_body;
#[cfg(any(test, fuzzing))]
pub(crate) use body::fuzz as fuzz_body;
pub(crate) use delete::{DeleteOutcome, delete_checked, delete_object};
pub(crate) use metadata::{finalizers, now};
#[cfg(any(test, fuzzing))]
pub(crate) use read::fuzz_continue;
pub(crate) use subresources::check_namespace;
pub use watch::{WatchEvent, WatchEvents};

/// The result of a request, before it is rendered.
pub struct Reply {
    pub code: StatusCode,
    pub warnings: Vec<String>,
    /// What a policy of the namespace has the audit log say.
    pub audit_reason: Option<String>,
    pub payload: Payload,
}

pub enum Payload {
    Object(View),
    List(List),
    Watch(WatchEvents),
    /// A `Status`, a `Scale` or a review; rendered unchanged.
    Value(Value),
}

/// A list, or one page of it.
pub struct List {
    pub version: u64,
    /// Token for the next page; empty on the last page.
    pub next: String,
    pub remaining: Option<u64>,
    pub items: Vec<View>,
}

impl Reply {
    pub fn ok(payload: Payload) -> Self {
        Self::with_code(StatusCode::OK, payload)
    }

    pub fn created(payload: Payload) -> Self {
        Self::with_code(StatusCode::CREATED, payload)
    }

    pub fn with_code(code: StatusCode, payload: Payload) -> Self {
        Self { code, warnings: Vec::new(), audit_reason: None, payload }
    }
}

/// The request that a verb handles, with the endpoint it is for.
pub(crate) struct Context<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) user: &'a UserInfo,
    pub(crate) endpoint: Endpoint,
    pub(crate) request: &'a ResourceRequest,
    pub(crate) parts: &'a Parts,
    pub(crate) warnings: Vec<String>,
    pub(crate) audit_reason: Option<String>,
    /// The write is a server-side apply, which updates `managedFields` itself.
    pub(crate) applied: bool,
    /// Paths of the fields that occur twice in the body.
    pub(crate) duplicates: Vec<String>,
}

impl Context<'_> {
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.request.namespace, &self.request.name)
    }

    pub(crate) fn user_agent(&self) -> &str {
        self.parts.headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    pub(crate) fn content_type(&self) -> &str {
        self.parts.headers.get(http::header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    pub(crate) fn not_found(&self) -> ApiError {
        let resource = &self.endpoint.resource;
        ApiError::not_found(&resource.group, &resource.plural, &self.request.name)
    }
}

/// Handles a resource request.
pub(crate) async fn dispatch(
    core: &Arc<Core>,
    user: &UserInfo,
    request: &ResourceRequest,
    parts: &Parts,
    body: Bytes,
) -> Result<Reply, ApiError> {
    let endpoint = core
        .registry
        .snapshot()
        .endpoint(&request.group, &request.version, &request.resource)
        .ok_or_else(ApiError::no_such_path)?;
    check_scope(&endpoint, request)?;
    let warnings = endpoint.version().deprecation_warning.iter().cloned().collect();
    let mut context = Context {
        core,
        user,
        endpoint,
        request,
        parts,
        warnings,
        audit_reason: None,
        applied: false,
        duplicates: Vec::new(),
    };
    let reply = call_verb(&mut context, body).await;
    let (warnings, audit_reason) = (context.warnings, context.audit_reason);
    reply.map(|mut reply| {
        reply.warnings.extend(warnings);
        reply.audit_reason = audit_reason;
        reply
    })
}

/// Fails if the path does not fit the resource: wrong scope, or a subresource that is not served.
pub(crate) fn check_scope(endpoint: &Endpoint, request: &ResourceRequest) -> Result<(), ApiError> {
    let resource = &endpoint.resource;
    let misplaced = if resource.namespaced {
        request.namespace.is_empty() && !request.name.is_empty()
    } else {
        !request.namespace.is_empty()
    };
    if misplaced {
        return Err(ApiError::no_such_path());
    }
    let subresource = request.subresource.as_str();
    let known = &endpoint.version().subresources;
    let served = match subresource {
        "" => true,
        "status" => known.status,
        "scale" => known.scale.is_some() || known.others.contains(&"scale"),
        other => known.others.contains(&other),
    };
    match served {
        true => Ok(()),
        false if resource.is_custom() => Err(ApiError::not_found(&resource.group, &resource.plural, &request.name)),
        false => Err(ApiError::no_such_path()),
    }
}

async fn call_verb(context: &mut Context<'_>, body: Bytes) -> Result<Reply, ApiError> {
    let request = context.request;
    let custom = context.endpoint.resource.is_custom();
    if request.name.is_empty() && matches!(request.verb, Verb::Update | Verb::Patch) {
        return Err(if custom {
            ApiError::bad_request("name must be provided")
        } else {
            ApiError::method_not_allowed()
        });
    }
    match (request.verb, request.subresource.as_str()) {
        (Verb::Get, "" | "status") => read::get(context).await,
        (Verb::List, "") => read::list(context).await,
        (Verb::Watch, "") => read::watch(context).await,
        (Verb::Create, "") if request.name.is_empty() || custom => create::create(context, &body).await,
        (Verb::Update, "" | "status") => update::update(context, &body).await,
        (Verb::Patch, "" | "status") => patch::patch(context, &body).await,
        (Verb::Get | Verb::Update | Verb::Patch, "scale") => subresources::scale(context, &body).await,
        (Verb::Create, "binding") => subresources::bind(context, &body).await,
        (Verb::Create, "eviction") => subresources::evict(context, &body).await,
        (Verb::Update, "finalize") => subresources::finalize(context, &body).await,
        (Verb::Update, "ephemeralcontainers" | "resize") => update::update(context, &body).await,
        (Verb::Patch, "ephemeralcontainers" | "resize") => patch::patch(context, &body).await,
        (Verb::Delete, "") => delete::delete(context, &body).await,
        (Verb::DeleteCollection, "") => delete::delete_collection(context, &body).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}
