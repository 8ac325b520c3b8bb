//! The review resources and token requests: answered from the policy and the token signer, never stored.

use http::request::Parts;
use jiff::Timestamp;
use serde_json::Value;

use super::auth::UserInfo;
use super::auth::reviews::{self, TokenRequest};
use super::{Front, stored_object};
use crate::request::{ResourceRequest, Verb};
use crate::status::ApiError;
use crate::store::Store;
use crate::verbs::{Payload, Reply, check_namespace, decode_body};

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

impl Front {
    /// Handles a review or token request; `None` for all other requests.
    pub(crate) fn review(
        &self,
        store: &Store,
        user: &UserInfo,
        request: &ResourceRequest,
        parts: &Parts,
        body: &[u8],
    ) -> Option<Result<Reply, ApiError>> {
        let wanted = (request.group.as_str(), request.resource.as_str(), request.subresource.as_str());
        let reviewed = match wanted {
            (AUTHENTICATION, "tokenreviews" | "selfsubjectreviews", "")
            | (AUTHORIZATION, "selfsubjectaccessreviews" | "selfsubjectrulesreviews" | "subjectaccessreviews", "")
            | ("", "serviceaccounts", "token") => {
                if request.verb != Verb::Create {
                    return Some(Err(ApiError::method_not_allowed()));
                }
                self.evaluate(store, user, request, parts, body)
            }
            _ => return None,
        };
        Some(reviewed.map(|review| Reply::created(Payload::Value(review))))
    }

    /// The review with its status filled in.
    fn evaluate(
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
        if request.subresource == "token" {
            check_namespace(&review, &request.namespace)?;
        }
        let mut typed = |group: &str, kind: &str| {
            review["apiVersion"] = format!("{group}/v1").into();
            review["kind"] = kind.into();
            std::mem::take(&mut review)
        };
        match request.resource.as_str() {
            "serviceaccounts" => {
                let account = stored_object(store, "serviceaccounts", &request.namespace, &request.name)?;
                let body = typed(AUTHENTICATION, "TokenRequest");
                let wanted = TokenRequest { namespace: &request.namespace, account: &account, body };
                let (reply, claims) = reviews::token_request(wanted, &self.authenticator, &*self.objects, now)?;
                self.tokens.record(&claims, now).map_err(ApiError::internal)?;
                Ok(reply)
            }
            "tokenreviews" => Ok(reviews::token_review(typed(AUTHENTICATION, "TokenReview"), &self.authenticator, now)),
            "selfsubjectreviews" => Ok(reviews::self_review(typed(AUTHENTICATION, "SelfSubjectReview"), user)),
            "selfsubjectaccessreviews" => reviews::access_review(
                typed(AUTHORIZATION, "SelfSubjectAccessReview"),
                Some(user),
                &self.policy.current(),
            ),
            "subjectaccessreviews" => {
                reviews::access_review(typed(AUTHORIZATION, "SubjectAccessReview"), None, &self.policy.current())
            }
            _ => reviews::rules_review(typed(AUTHORIZATION, "SelfSubjectRulesReview"), user, &self.policy.current()),
        }
    }
}
