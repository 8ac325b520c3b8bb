//! Mode `rbac`: may a caller reach the sandboxes of a namespace? Decided by Kubernetes RBAC, as for a port-forward.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};

use super::cache::{Key, ReviewCache};
use super::token_review::{CALL_DEADLINE, Caller, error_ttl};
use crate::error::RouterError;

/// Decides whether a caller may connect to ports of Pods.
#[async_trait]
pub trait AccessReview: Send + Sync + 'static {
    /// Whether `caller` may `create pods/portforward` in `namespace`; for any Pod there when `pod` is empty.
    async fn may_forward(&self, caller: &Caller, namespace: &str, pod: &str) -> Result<bool, kube::Error>;
}

/// Asks `authorization.k8s.io/v1`, without a cache.
pub struct KubeAccessReview(pub Client);

#[async_trait]
impl AccessReview for KubeAccessReview {
    async fn may_forward(&self, caller: &Caller, namespace: &str, pod: &str) -> Result<bool, kube::Error> {
        let attributes = ResourceAttributes {
            verb: Some("create".to_owned()),
            resource: Some("pods".to_owned()),
            subresource: Some("portforward".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: (!pod.is_empty()).then(|| pod.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            user: Some(caller.user.clone()),
            uid: (!caller.uid.is_empty()).then(|| caller.uid.clone()),
            groups: Some(caller.groups.clone()),
            extra: (!caller.extra.is_empty()).then(|| caller.extra.clone()),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = Api::<SubjectAccessReview>::all(self.0.clone()).create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

/// An [`AccessReview`] behind a bounded cache.
pub(super) struct CachedAccessReview {
    api: Arc<dyn AccessReview>,
    ttl: Duration,
    /// `None`: the API could not answer.
    cache: ReviewCache<Option<bool>>,
}

impl CachedAccessReview {
    pub(super) fn new(api: Arc<dyn AccessReview>, ttl: Duration, capacity: usize) -> Self {
        Self { api, ttl, cache: ReviewCache::new(capacity) }
    }

    async fn review(&self, caller: &Caller, namespace: &str, pod: &str) -> Result<bool, RouterError> {
        let ask = async {
            match tokio::time::timeout(CALL_DEADLINE, self.api.may_forward(caller, namespace, pod)).await {
                Ok(Ok(allowed)) => (Some(allowed), self.ttl),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "Access review failed");
                    (None, error_ttl(self.ttl))
                }
                Err(_) => {
                    tracing::warn!("Access review timed out");
                    (None, error_ttl(self.ttl))
                }
            }
        };
        // A zero time to live means that every request is decided anew, as an in-process API can afford.
        let allowed = match self.ttl.is_zero() {
            true => ask.await.0,
            false => self.cache.get_or_review(key(caller, namespace, pod), ask).await,
        };
        allowed.ok_or(RouterError::AccessReview)
    }

    /// Accepts callers that may forward ports to every Pod of the namespace, or to this one by name.
    pub(super) async fn check(&self, caller: &Caller, namespace: &str, pod: Option<&str>) -> Result<(), RouterError> {
        if self.review(caller, namespace, "").await? {
            return Ok(());
        }
        match pod {
            Some(pod) if self.review(caller, namespace, pod).await? => Ok(()),
            _ => Err(RouterError::Forbidden),
        }
    }
}

/// Every field is preceded by its length, so that no two questions share a key.
fn key(caller: &Caller, namespace: &str, pod: &str) -> Key {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    };
    for text in [namespace, pod, &caller.user, &caller.uid] {
        add(text);
    }
    add(&caller.groups.len().to_string());
    caller.groups.iter().for_each(|group| add(group));
    for (name, values) in &caller.extra {
        add(name);
        add(&values.len().to_string());
        values.iter().for_each(|value| add(value));
    }
    digest.finalize().into()
}
