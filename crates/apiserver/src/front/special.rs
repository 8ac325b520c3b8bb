//! Requests that name a resource but are no verbs on stored objects: reviews, token requests, streams.

use http::request::Parts;
use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use jiff::Timestamp;
use serde_json::Value;

use super::Front;
use crate::auth::reviews::{self, TokenRequest};
use crate::identity::UserInfo;
use crate::node::NodeError;
use crate::render::Body;
use crate::request::{ResourceRequest, Verb};
use crate::status::{ApiError, FieldError};
use crate::store::{ObjectKey, Store};
use crate::streams::handler::{StreamError, StreamKind, StreamRequest};
use crate::streams::request::RequestError;
use crate::verbs::{Payload, Reply, decode_body};

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

impl Front {
    /// Which stream a request wants, if any.
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
        store: &Store,
        user: &UserInfo,
        kind: StreamKind,
        request: &ResourceRequest,
        parts: &mut Parts,
    ) -> Result<Response<Body>, ApiError> {
        if !matches!(request.verb, Verb::Get | Verb::Create) {
            return Err(ApiError::method_not_allowed());
        }
        let pod = stored(store, "pods", &request.namespace, &request.name)?;
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let stream = StreamRequest {
            method: &parts.method,
            headers: &parts.headers,
            query: parts.uri.query(),
            upgrade,
            pod: &pod,
            backend: (self.backend.load())(user),
        };
        self.streams.handle(kind, stream).await.map_err(|error| refusal(kind, &request.name, error))
    }

    /// Answers a review or token request; `None` for all other requests.
    pub(crate) fn review(
        &self,
        store: &Store,
        user: &UserInfo,
        request: &ResourceRequest,
        parts: &Parts,
        body: &[u8],
    ) -> Option<Result<Reply, ApiError>> {
        let wanted = (request.group.as_str(), request.resource.as_str(), request.subresource.as_str());
        let review = match wanted {
            (AUTHENTICATION, "tokenreviews" | "selfsubjectreviews", "")
            | (AUTHORIZATION, "selfsubjectaccessreviews" | "selfsubjectrulesreviews" | "subjectaccessreviews", "")
            | ("", "serviceaccounts", "token") => {
                if request.verb != Verb::Create {
                    return Some(Err(ApiError::method_not_allowed()));
                }
                self.answer(store, user, request, parts, body)
            }
            _ => return None,
        };
        Some(review.map(|answer| Reply::created(Payload::Value(answer))))
    }

    fn answer(
        &self,
        store: &Store,
        user: &UserInfo,
        request: &ResourceRequest,
        parts: &Parts,
        body: &[u8],
    ) -> Result<Value, ApiError> {
        let content_type = parts.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let mut review = decode_body(content_type.unwrap_or_default(), body)?;
        if review.get("metadata").is_none() {
            review["metadata"] = serde_json::json!({});
        }
        let now = Timestamp::now();
        let mut typed = |group: &str, kind: &str| {
            review["apiVersion"] = format!("{group}/v1").into();
            review["kind"] = kind.into();
            std::mem::take(&mut review)
        };
        match request.resource.as_str() {
            "serviceaccounts" => {
                let account = stored(store, "serviceaccounts", &request.namespace, &request.name)?;
                let body = typed(AUTHENTICATION, "TokenRequest");
                let wanted = TokenRequest { namespace: &request.namespace, account: &account, body };
                reviews::token_request(wanted, &self.authenticator, &*self.objects, now)
            }
            "tokenreviews" => Ok(reviews::token_review(typed(AUTHENTICATION, "TokenReview"), &self.authenticator, now)),
            "selfsubjectreviews" => Ok(reviews::self_review(typed(AUTHENTICATION, "SelfSubjectReview"), user)),
            "selfsubjectaccessreviews" => reviews::access_review(
                typed(AUTHORIZATION, "SelfSubjectAccessReview"),
                Some(user),
                &self.policies.current(),
            ),
            "subjectaccessreviews" => {
                reviews::access_review(typed(AUTHORIZATION, "SubjectAccessReview"), None, &self.policies.current())
            }
            _ => reviews::rules_review(typed(AUTHORIZATION, "SelfSubjectRulesReview"), user, &self.policies.current()),
        }
    }
}

fn stored(store: &Store, resource: &str, namespace: &str, name: &str) -> Result<Value, ApiError> {
    let found = store.get(&format!("/{resource}").into(), &ObjectKey::new(namespace, name));
    found.map(|object| object.parse()).ok_or_else(|| ApiError::not_found("", resource, name))
}

fn refusal(kind: StreamKind, pod: &str, error: StreamError) -> ApiError {
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
