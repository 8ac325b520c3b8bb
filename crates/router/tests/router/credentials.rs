//! What is open when its credential ends: streams, WebSockets and requests that have no response yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_sandbox_protocol::scoped_token::Secret;
use agent_sandbox_router::{
    AccessReview, AuthzConfig, Caller, Deps, Modes, ReviewOutcome, RouterConfig, TokenReview, TokenReviewConfig,
};
use async_trait::async_trait;
use futures::{SinkExt, StreamExt};
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio_tungstenite::tungstenite::Message;

use crate::links::{HOST, SECRET, both_end, config, event_stream, live_backend, web_socket};
use crate::support::*;

#[tokio::test]
async fn an_expired_token_ends_with_all_that_it_opened() {
    let ((backend, _), folder) = (live_backend().await, tempfile::tempdir().unwrap());
    let router = TestRouter::with(RouterConfig { links: None, ..config(&folder) }, backend).await;
    let mint = |ttl| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Secret::from_file_bytes(SECRET).unwrap().mint("default", "box", Duration::from_secs(ttl), now).unwrap()
    };
    let (token, kept_token) = (mint(3), mint(600));
    let open = (event_stream(&router, &token).await, web_socket(&router, &token).await);
    let mut kept = web_socket(&router, &kept_token).await;
    both_end(open.0, open.1).await;
    kept.send(Message::text("still")).await.unwrap();
    assert_eq!(kept.next().await.unwrap().unwrap(), Message::text("still"));
}

/// An API with one user, which has one right.
#[derive(Default)]
struct Kubernetes {
    revoked: AtomicBool,
    forbidden: AtomicBool,
}

#[async_trait]
impl TokenReview for Kubernetes {
    async fn review(&self, _: &str, _: &[String]) -> Result<ReviewOutcome, kube::Error> {
        let authenticated = !self.revoked.load(Ordering::Relaxed);
        Ok(ReviewOutcome { authenticated, audiences: Vec::new(), caller: Caller::default() })
    }
}

#[async_trait]
impl AccessReview for Kubernetes {
    async fn may_forward(&self, _: &Caller, _: &str, _: &str) -> Result<bool, kube::Error> {
        Ok(!self.forbidden.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn a_revoked_token_and_a_lost_right_end_all_that_is_open() {
    for (rbac, end, status) in [
        (false, (|api: &Kubernetes| &api.revoked) as fn(&Kubernetes) -> &AtomicBool, StatusCode::UNAUTHORIZED),
        (true, |api| &api.revoked, StatusCode::UNAUTHORIZED),
        (true, |api| &api.forbidden, StatusCode::FORBIDDEN),
    ] {
        let ((backend, hanging), folder) = (live_backend().await, tempfile::tempdir().unwrap());
        let ttl = Duration::from_millis(100);
        let token_review = Some(TokenReviewConfig { ttl, require_token: true, ..TokenReviewConfig::default() });
        let authz = AuthzConfig::AnyOf(Modes { token_review, rbac, ..Modes::default() });
        let config = RouterConfig { authz, access_ttl: ttl, links: None, ..config(&folder) };
        let api = Arc::new(Kubernetes::default());
        let deps = Deps {
            token_review: Some(Arc::clone(&api) as _),
            access_review: Some(Arc::clone(&api) as _),
            ..Deps::detached()
        };
        let router = TestRouter::with_deps(config, backend, deps).await;
        let open = (event_stream(&router, "alice").await, web_socket(&router, "alice").await);
        let address = router.addr;
        let waiting = tokio::spawn(async move {
            let request = Request::post("/hang").header("host", HOST).header("cookie", "session=alice");
            send(address, request.body(Full::from("x")).unwrap()).await.status
        });
        eventually("the request reaches the sandbox", || hanging.load(Ordering::Relaxed) == 1).await;
        end(&api).store(true, Ordering::Relaxed);
        both_end(open.0, open.1).await;
        let unanswered = tokio::time::timeout(TIMEOUT, waiting).await.expect("a request without a response ends, too");
        assert_eq!(unanswered.unwrap(), status, "rbac: {rbac}");
    }
}
