//! Asks the Kubernetes API whether a token is valid and whose it is, and caches the answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview as ReviewObject, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};

use super::TokenReviewConfig;
use super::cache::ReviewCache;
use crate::error::RouterError;

/// Timeout for one review.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(3);
/// Shortest time for which a failed call is cached, so that an API in trouble is not asked for every request.
const MIN_ERROR_TTL: Duration = Duration::from_secs(1);

/// A user of the Kubernetes API, as authentication established it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The result of a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewOutcome {
    pub authenticated: bool,
    /// Audiences the token is good for, as the reviewer reports them.
    pub audiences: Vec<String>,
    /// Whose token it is; meaningful only when authenticated.
    pub caller: Caller,
}

/// Reviews tokens; the API server, or a stand-in.
#[async_trait]
pub trait TokenReview: Send + Sync + 'static {
    async fn review(&self, token: &str, audiences: &[String]) -> Result<ReviewOutcome, kube::Error>;
}

/// Reviews tokens with `authentication.k8s.io/v1`.
pub struct KubeTokenReview(pub Client);

#[async_trait]
impl TokenReview for KubeTokenReview {
    async fn review(&self, token: &str, audiences: &[String]) -> Result<ReviewOutcome, kube::Error> {
        let spec =
            TokenReviewSpec { token: token.to_owned(), audiences: (!audiences.is_empty()).then(|| audiences.to_vec()) };
        let review = ReviewObject { spec, ..ReviewObject::default() };
        let answer = Api::<ReviewObject>::all(self.0.clone()).create(&PostParams::default(), &review).await?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.unwrap_or_default();
        Ok(ReviewOutcome {
            authenticated: status.authenticated.unwrap_or(false),
            audiences: status.audiences.unwrap_or_default(),
            caller: Caller {
                user: user.username.unwrap_or_default(),
                uid: user.uid.unwrap_or_default(),
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            },
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reviewed {
    Valid(Arc<Caller>),
    Invalid,
    /// The API could not answer.
    Unknown,
}

/// Token review with a bounded cache.
pub(super) struct TokenReviewer {
    config: TokenReviewConfig,
    api: Arc<dyn TokenReview>,
    cache: ReviewCache<Reviewed>,
}

impl TokenReviewer {
    pub(super) fn new(config: TokenReviewConfig, api: Arc<dyn TokenReview>) -> Self {
        let cache = ReviewCache::new(config.cache_size);
        Self { config, api, cache }
    }

    pub(super) fn requires_token(&self) -> bool {
        self.config.require_token
    }

    /// Whose token it is.
    pub(super) async fn review(&self, token: &str) -> Result<Arc<Caller>, RouterError> {
        let key = Sha256::digest(token.as_bytes()).into();
        match self.cache.get_or_review(key, self.ask(token)).await {
            Reviewed::Valid(caller) => Ok(caller),
            Reviewed::Invalid => Err(RouterError::Unauthenticated),
            Reviewed::Unknown => Err(RouterError::TokenReview),
        }
    }

    async fn ask(&self, token: &str) -> (Reviewed, Duration) {
        let asked = tokio::time::timeout(CALL_DEADLINE, self.api.review(token, &self.config.audiences)).await;
        match asked {
            Ok(Ok(outcome)) if outcome.authenticated && self.audience_fits(&outcome) => {
                (Reviewed::Valid(Arc::new(outcome.caller)), self.config.ttl)
            }
            Ok(Ok(_)) => (Reviewed::Invalid, self.config.ttl),
            Ok(Err(error)) => {
                tracing::warn!(%error, "Token review failed");
                (Reviewed::Unknown, error_ttl(self.config.ttl))
            }
            Err(_) => {
                tracing::warn!("Token review timed out");
                (Reviewed::Unknown, error_ttl(self.config.ttl))
            }
        }
    }

    /// A reviewer that ignores audiences would accept a token issued for another service.
    fn audience_fits(&self, outcome: &ReviewOutcome) -> bool {
        self.config.audiences.is_empty()
            || outcome.audiences.iter().any(|audience| self.config.audiences.contains(audience))
    }
}

/// How long a failed call is cached: a third of the time to live of an answer.
pub(super) fn error_ttl(ttl: Duration) -> Duration {
    (ttl / 3).max(MIN_ERROR_TTL)
}
