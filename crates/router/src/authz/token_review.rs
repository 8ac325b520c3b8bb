//! Asks the Kubernetes API whether a token is good, and remembers the answer for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview as ReviewObject, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::TokenReviewConfig;
use crate::error::RouterError;

/// One review may take so long.
const CALL_DEADLINE: Duration = Duration::from_secs(3);
/// Failures are remembered at least so long, so that an API in trouble is not asked for every request.
const MIN_ERROR_TTL: Duration = Duration::from_secs(1);

/// What a reviewer said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewOutcome {
    pub authenticated: bool,
    /// Audiences the token is good for, as the reviewer reports them.
    pub audiences: Vec<String>,
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
        Ok(ReviewOutcome {
            authenticated: status.authenticated.unwrap_or(false),
            audiences: status.audiences.unwrap_or_default(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Bad,
    Unknown,
}

struct Remembered {
    verdict: Verdict,
    until: Instant,
    used: u64,
}

#[derive(Default)]
struct Memory {
    /// Keyed by digest: tokens themselves are not kept.
    verdicts: HashMap<[u8; 32], Remembered>,
    clock: u64,
}

/// Token review with a bounded memory.
pub(super) struct TokenReviewer {
    config: TokenReviewConfig,
    api: Arc<dyn TokenReview>,
    memory: Mutex<Memory>,
    /// One call at a time per token, so that a burst of requests asks once.
    calls: Mutex<HashMap<[u8; 32], Arc<tokio::sync::Mutex<()>>>>,
}

impl TokenReviewer {
    pub(super) fn new(config: TokenReviewConfig, api: Arc<dyn TokenReview>) -> Self {
        Self { config, api, memory: Mutex::default(), calls: Mutex::default() }
    }

    pub(super) fn requires_token(&self) -> bool {
        self.config.require_token
    }

    pub(super) async fn review(&self, token: &str) -> Result<(), RouterError> {
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(verdict) = self.recall(&key) {
            return verdict.into_result();
        }
        let call = Arc::clone(self.calls.lock().entry(key).or_default());
        let verdict = {
            let _turn = call.lock().await;
            match self.recall(&key) {
                Some(verdict) => verdict,
                None => {
                    let (verdict, ttl) = self.ask(token).await;
                    self.remember(key, verdict, ttl);
                    verdict
                }
            }
        };
        self.calls.lock().remove(&key);
        verdict.into_result()
    }

    async fn ask(&self, token: &str) -> (Verdict, Duration) {
        let error_ttl = (self.config.ttl / 3).max(MIN_ERROR_TTL);
        let asked = tokio::time::timeout(CALL_DEADLINE, self.api.review(token, &self.config.audiences)).await;
        match asked {
            Ok(Ok(outcome)) if outcome.authenticated && self.audience_fits(&outcome) => {
                (Verdict::Good, self.config.ttl)
            }
            Ok(Ok(_)) => (Verdict::Bad, self.config.ttl),
            Ok(Err(error)) => {
                tracing::warn!(%error, "Token review failed");
                (Verdict::Unknown, error_ttl)
            }
            Err(_) => {
                tracing::warn!("Token review timed out");
                (Verdict::Unknown, error_ttl)
            }
        }
    }

    /// A reviewer that does not know audiences would accept a token meant for somebody else.
    fn audience_fits(&self, outcome: &ReviewOutcome) -> bool {
        self.config.audiences.is_empty()
            || outcome.audiences.iter().any(|audience| self.config.audiences.contains(audience))
    }

    fn recall(&self, key: &[u8; 32]) -> Option<Verdict> {
        let mut memory = self.memory.lock();
        memory.clock += 1;
        let clock = memory.clock;
        let remembered = memory.verdicts.get_mut(key)?;
        if Instant::now() >= remembered.until {
            memory.verdicts.remove(key);
            return None;
        }
        remembered.used = clock;
        Some(remembered.verdict)
    }

    fn remember(&self, key: [u8; 32], verdict: Verdict, ttl: Duration) {
        let mut memory = self.memory.lock();
        memory.clock += 1;
        let used = memory.clock;
        if memory.verdicts.len() >= self.config.cache_size {
            memory.make_room();
        }
        memory.verdicts.insert(key, Remembered { verdict, until: Instant::now() + ttl, used });
    }
}

impl Memory {
    /// Drops what has expired, and else the tenth that was used longest ago: one scan then pays for many insertions.
    fn make_room(&mut self) {
        let now = Instant::now();
        let before = self.verdicts.len();
        self.verdicts.retain(|_, remembered| now < remembered.until);
        if self.verdicts.len() == before {
            let mut ages: Vec<u64> = self.verdicts.values().map(|remembered| remembered.used).collect();
            let (_, oldest_kept, _) = ages.select_nth_unstable(before / 10);
            let oldest_kept = *oldest_kept;
            self.verdicts.retain(|_, remembered| remembered.used > oldest_kept);
        }
    }
}

impl Verdict {
    fn into_result(self) -> Result<(), RouterError> {
        match self {
            Self::Good => Ok(()),
            Self::Bad => Err(RouterError::Unauthenticated),
            Self::Unknown => Err(RouterError::TokenReview),
        }
    }
}
