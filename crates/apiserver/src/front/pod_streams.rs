//! The streaming subresources of Pods: looks up the Pod and passes the request to the stream server.

use std::sync::Arc;

use agent_sandbox_streams::backend::NodeError;
use agent_sandbox_streams::request::RequestError;
use agent_sandbox_streams::server::{StillAllowed, StreamError, StreamKind, StreamRequest};
use http::request::Parts;
use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use serde_json::Value;

use super::auth::UserInfo;
use super::{Front, attributes, stored_object};
use crate::render::Body;
use crate::request::{ResourceRequest, Verb};
use crate::server::Core;
use crate::status::{ApiError, FieldError};

impl Front {
    /// The kind of stream that a request is for; `None` if it is for no streaming subresource.
    pub(crate) fn stream_kind(request: &ResourceRequest) -> Option<StreamKind> {
        if (request.group.as_str(), request.resource.as_str()) != ("", "pods") || !request.tail.is_empty() {
            return None;
        }
        match request.subresource.as_str() {
            "log" if request.verb == Verb::Get => Some(StreamKind::Log),
            "exec" => Some(StreamKind::Exec),
            "attach" => Some(StreamKind::Attach),
            "portforward" => Some(StreamKind::PortForward),
            _ => None,
        }
    }

    pub(crate) async fn stream(
        &self,
        core: &Arc<Core>,
        user: &UserInfo,
        kind: StreamKind,
        request: &ResourceRequest,
        parts: &mut Parts,
    ) -> Result<Response<Body>, ApiError> {
        if !matches!(request.verb, Verb::Get | Verb::Create) {
            return Err(ApiError::method_not_allowed());
        }
        let pod = stored_object(&core.store, "pods", &request.namespace, &request.name)?;
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let stream = StreamRequest {
            method: &parts.method,
            headers: &parts.headers,
            query: parts.uri.query(),
            upgrade,
            pod: &pod,
            backend: (self.backend.load())(user),
            still_allowed: Some(still_allowed(core, user, kind, request)),
        };
        self.streams.handle(kind, stream).await.map_err(|error| api_error(kind, &request.name, error))
    }
}

/// Whether a session that is open may go on: the user's token is valid and, for a port-forward, the permission still
/// granted. Commands that were allowed to start may finish when only a role changes, as in Kubernetes.
fn still_allowed(core: &Arc<Core>, user: &UserInfo, kind: StreamKind, request: &ResourceRequest) -> StillAllowed {
    let (core, user) = (Arc::downgrade(core), user.clone());
    let wanted = (kind == StreamKind::PortForward).then(|| attributes(request, Verb::Create.as_str()));
    Arc::new(move || {
        core.upgrade().is_some_and(|core| match &wanted {
            Some(wanted) => core.front.allows(&user, wanted),
            None => core.front.is_still_valid(&user),
        })
    })
}

fn api_error(kind: StreamKind, pod: &str, error: StreamError) -> ApiError {
    match error {
        StreamError::Request(RequestError::BadRequest(message)) => ApiError::bad_request(message),
        StreamError::Request(RequestError::Invalid { field, value, message }) => {
            let options = if kind == StreamKind::Log { "PodLogOptions" } else { "PodExecOptions" };
            let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
            ApiError::invalid("", options, pod, &[FieldError::invalid(field, &value, message)])
        }
        StreamError::Node(error) => {
            let (code, reason) = match &error {
                NodeError::NotFound(_) => (StatusCode::NOT_FOUND, "NotFound"),
                NodeError::BadRequest(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
                NodeError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
                NodeError::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            };
            ApiError::new(code, reason, error.to_string())
        }
        StreamError::Busy => ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", error.to_string()),
    }
}
