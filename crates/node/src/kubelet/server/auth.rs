//! Authentication and authorisation of requests: a client certificate names the user, or TokenReview does; then a
//! SubjectAccessReview for each request decides.
//!
//! A browser sends a certificate that its user installed with requests of any page, unlike a token. Pages of other
//! origins are therefore refused where a certificate is the credential.

use agent_sandbox_protocol::web::{AllowedHosts, AllowedOrigins, PageError, PageRules};
use http::{HeaderMap, HeaderName, Method, Request, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use thiserror::Error;

/// Why a request is rejected.
#[derive(Debug, Error)]
pub enum AuthError {
    #[error("Unauthorized")]
    Unauthenticated,
    #[error("Forbidden (user={user}, verb={verb}, resource=nodes, subresource=proxy)")]
    Forbidden { user: String, verb: &'static str },
    #[error("cannot review the caller's token with the API")]
    ReviewFailed(#[source] Box<kube::Error>),
}

impl AuthError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::ReviewFailed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Set by an API server that passes a stream of its own client on, together with that client's `Origin`. A page can set
/// it neither in a WebSocket's handshake nor, without being asked first, elsewhere.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Refuses a request that a page of another origin sends with its browser's certificate. TLS has checked the name of this
/// server, so that no foreign domain can stand for it.
pub(super) fn check_page<B>(request: &Request<B>) -> Result<(), PageError> {
    if request.headers().contains_key(FORWARDED_FOR) {
        return Ok(());
    }
    let rules =
        PageRules { hosts: AllowedHosts::any(), origins: AllowedOrigins::default(), own_proxy: false, links: false };
    rules.check_page(request, Some("https"))
}

/// Accepts a request whose user, of the connection's certificate or of a valid token, is authorised for `nodes/proxy` of
/// this node.
pub(super) async fn authorize(
    client: &kube::Client,
    node_name: &str,
    certified: Option<&UserInfo>,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(), AuthError> {
    let user = match certified {
        Some(user) => user.clone(),
        None => user_of_token(client, headers).await?,
    };
    check_node_access(client, node_name, method, user).await
}

async fn user_of_token(client: &kube::Client, headers: &HeaderMap) -> Result<UserInfo, AuthError> {
    let header = headers.get(http::header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let token = header.and_then(|v| v.strip_prefix("Bearer ")).map(str::trim).filter(|t| !t.is_empty());
    let token = token.ok_or(AuthError::Unauthenticated)?.to_owned();
    let review_failed = |error| AuthError::ReviewFailed(Box::new(error));
    let review = TokenReview { spec: TokenReviewSpec { token, audiences: None }, ..TokenReview::default() };
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let response = reviews.create(&PostParams::default(), &review).await.map_err(review_failed)?;
    let status = response.status.unwrap_or_default();
    status.user.filter(|_| status.authenticated == Some(true)).ok_or(AuthError::Unauthenticated)
}

/// Checks whether a user is authorised for `nodes/proxy` of this node.
async fn check_node_access(
    client: &kube::Client,
    node_name: &str,
    method: &Method,
    user: UserInfo,
) -> Result<(), AuthError> {
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
    let response = reviews.create(&PostParams::default(), &review).await;
    let response = response.map_err(|error| AuthError::ReviewFailed(Box::new(error)))?;
    if response.status.is_some_and(|s| s.allowed) { Ok(()) } else { Err(AuthError::Forbidden { user: name, verb }) }
}
