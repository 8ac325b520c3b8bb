//! Who may use the node's server without a client certificate: the API is asked, every time.

use http::{HeaderMap, Method, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use thiserror::Error;

/// Why a caller is turned away.
#[derive(Debug, Error)]
pub enum Refusal {
    #[error("Unauthorized")]
    Unknown,
    #[error("Forbidden (user={user}, verb={verb}, resource=nodes, subresource=proxy)")]
    Forbidden { user: String, verb: &'static str },
    #[error("the API could not be asked who this is")]
    Unanswered(#[source] Box<kube::Error>),
}

impl Refusal {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Unknown => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::Unanswered(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Lets a caller through whose token is known and whose user may use `nodes/proxy` of this node.
pub(super) async fn check(
    client: &kube::Client,
    node_name: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let given = headers.get(http::header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let token = given.and_then(|v| v.strip_prefix("Bearer ")).map(str::trim).filter(|t| !t.is_empty());
    let token = token.ok_or(Refusal::Unknown)?.to_owned();
    let unanswered = |error| Refusal::Unanswered(Box::new(error));
    let review = TokenReview { spec: TokenReviewSpec { token, audiences: None }, ..TokenReview::default() };
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await.map_err(unanswered)?;
    let status = answer.status.unwrap_or_default();
    let user = status.user.filter(|_| status.authenticated == Some(true)).ok_or(Refusal::Unknown)?;
    allow(client, node_name, method, user).await
}

async fn allow(client: &kube::Client, node_name: &str, method: &Method, user: UserInfo) -> Result<(), Refusal> {
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let name = user.username.clone().unwrap_or_default();
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some("proxy".to_owned()),
                name: Some(node_name.to_owned()),
                version: Some("v1".to_owned()),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(|error| Refusal::Unanswered(Box::new(error)))?;
    if answer.status.is_some_and(|s| s.allowed) { Ok(()) } else { Err(Refusal::Forbidden { user: name, verb }) }
}
