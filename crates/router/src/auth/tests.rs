//! Which requests are accepted, in each mode and in combinations.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use agent_sandbox_protocol::router_headers::Loopback;
use async_trait::async_trait;
use http::HeaderValue;

use super::admission::{Admission, Credential, ends};
use super::*;
use crate::resolve::index::PodFacts;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// Accepts one token until it is revoked; fails while `down` is set.
#[derive(Default)]
struct FakeApi {
    calls: AtomicUsize,
    down: std::sync::atomic::AtomicBool,
    revoked: std::sync::atomic::AtomicBool,
    asked_for: parking_lot::Mutex<Vec<String>>,
    audiences: Vec<String>,
}

#[async_trait]
impl TokenReview for FakeApi {
    async fn review(&self, token: &str, audiences: &[String]) -> Result<ReviewOutcome, kube::Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        *self.asked_for.lock() = audiences.to_vec();
        if self.down.load(Ordering::Relaxed) {
            return Err(kube::Error::LinesCodecMaxLineLengthExceeded);
        }
        Ok(ReviewOutcome {
            authenticated: token.starts_with("good") && !self.revoked.load(Ordering::Relaxed),
            audiences: self.audiences.clone(),
            caller: caller(token),
        })
    }
}

fn reviews(api: &Arc<FakeApi>) -> Reviews {
    Reviews { token: Some(Arc::clone(api) as _), ..Reviews::default() }
}

/// The user of a token: `good-alice` belongs to alice.
fn caller(token: &str) -> Caller {
    Caller { user: token.trim_start_matches("good-").to_owned(), ..Caller::default() }
}

fn with_token(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap())])
}

fn wanted(id: &str, extra: &[(&'static str, &str)]) -> SandboxRequest {
    let mut headers: HeaderMap = extra.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
    headers.insert("x-sandbox-id", id.parse().unwrap());
    SandboxRequest::parse(&headers, Loopback::Refused).unwrap()
}

fn index() -> PodIndex {
    let index = PodIndex::default();
    index.apply(PodFacts {
        namespace: "default".into(),
        sandbox: "box-a".into(),
        sandbox_uid: "u1".into(),
        pod: "p".into(),
        pod_uid: "p1".into(),
        ips: vec!["10.0.0.7".parse().unwrap()],
        name_routable: true,
        idle: None,
        e2b: None,
    });
    index
}

fn modes(change: impl FnOnce(&mut Modes)) -> AuthzConfig {
    let mut modes = Modes::default();
    change(&mut modes);
    AuthzConfig::AnyOf(modes)
}

fn review(api: &Arc<FakeApi>, change: impl FnOnce(&mut TokenReviewConfig)) -> Authorizer {
    let mut config = TokenReviewConfig::default();
    change(&mut config);
    Authorizer::new(&modes(|modes| modes.token_review = Some(config)), reviews(api)).unwrap()
}

fn secret_file(content: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    file
}

fn scoped(files: &[&tempfile::NamedTempFile]) -> Authorizer {
    let paths = files.iter().map(|file| file.path().to_owned()).collect();
    Authorizer::new(&modes(|modes| modes.scoped_token_secrets = paths), Reviews::default()).unwrap()
}

fn token(secret: &[u8], name: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Secret::from_file_bytes(secret).unwrap().mint("default", name, Duration::from_secs(60), now).unwrap()
}

#[test]
fn bearer_tokens_are_extracted_as_the_contract_says() {
    let extract = |value: &str| {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
        bearer(&headers).map(str::to_owned)
    };
    assert_eq!(extract("Bearer abc").as_deref(), Some("abc"));
    assert_eq!(extract("bEaReR  abc  ").as_deref(), Some("abc"));
    for none in ["", "Bearer", "Bearer ", "Bearer   ", "Basic abc", "Bearerabc", "Token abc"] {
        assert_eq!(extract(none), None, "{none}");
    }
    let mut twice = with_token("a");
    twice.append(AUTHORIZATION, HeaderValue::from_static("Bearer b"));
    assert_eq!(bearer(&twice), None);
}

/// D-144
#[tokio::test]
async fn allow_all_accepts_every_request() {
    let authorizer = Authorizer::new(&AuthzConfig::AllowAll, Reviews::default()).unwrap();
    let identity = authorizer.authenticate(None).await.unwrap();
    assert!(identity.covers(&wanted("any", &[]), &index(), true).is_ok());
}

/// D-146
#[tokio::test]
async fn reviews_are_cached_and_failures_for_a_shorter_time() {
    let api = Arc::new(FakeApi::default());
    let ttl = Duration::from_millis(300);
    let authorizer = review(&api, |config| config.ttl = ttl);
    let asked = std::time::Instant::now();
    let calls_in_time = || (api.calls.load(Ordering::Relaxed), asked.elapsed() < ttl);
    for _ in 0..3 {
        assert!(authorizer.authenticate(bearer(&with_token("good"))).await.is_ok());
    }
    let (calls, in_time) = calls_in_time();
    assert!(calls == 1 || !in_time, "asked {calls} times within the time to live");
    assert!(matches!(authorizer.authenticate(bearer(&with_token("bad"))).await, Err(RouterError::Unauthenticated)));
    api.down.store(true, Ordering::Relaxed);
    let deadline = asked + Duration::from_secs(10);
    let failed = loop {
        match authorizer.authenticate(bearer(&with_token("good"))).await {
            Err(error) => break error,
            Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        assert!(std::time::Instant::now() < deadline, "a result is not cached forever");
    };
    assert!(asked.elapsed() >= ttl);
    assert_eq!(failed.status().as_u16(), 500);
    assert!(!failed.to_string().contains("Lines"), "the API's error message is not sent to clients");
    api.down.store(false, Ordering::Relaxed);
    let failed_at = std::time::Instant::now();
    while authorizer.authenticate(bearer(&with_token("good"))).await.is_err() {
        assert!(std::time::Instant::now() < deadline, "a failure is not cached forever");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let remembered = failed_at.elapsed();
    assert!(remembered > Duration::from_millis(800), "failures are cached for at least a second: {remembered:?}");
}

/// D-146: a burst of requests makes one review.
#[tokio::test]
async fn concurrent_requests_share_one_review() {
    let api = Arc::new(FakeApi::default());
    let authorizer = review(&api, |_| {});
    let headers = with_token("good");
    let all = futures::future::join_all((0..50).map(|_| authorizer.authenticate(bearer(&headers)))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(api.calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_cache_of_reviews_is_bounded() {
    let api = Arc::new(FakeApi::default());
    let authorizer = review(&api, |config| config.cache_size = 10);
    for number in 0..1000 {
        assert!(authorizer.authenticate(bearer(&with_token(&format!("bad-{number}")))).await.is_err());
    }
    assert_eq!(api.calls.load(Ordering::Relaxed), 1000);
    assert!(authorizer.authenticate(bearer(&with_token("bad-999"))).await.is_err());
    assert_eq!(api.calls.load(Ordering::Relaxed), 1000, "the newest is cached");
}

/// D-147
#[tokio::test]
async fn token_review_alone_may_accept_anonymous_requests() {
    let api = Arc::new(FakeApi::default());
    assert!(review(&api, |_| {}).authenticate(None).await.is_ok());
    let strict = review(&api, |config| config.require_token = true);
    assert!(matches!(strict.authenticate(None).await, Err(RouterError::Unauthenticated)));
    assert_eq!(api.calls.load(Ordering::Relaxed), 0);
}

/// D-148
#[tokio::test]
async fn audiences_are_sent_and_checked_in_the_reply() {
    let wanted = |config: &mut TokenReviewConfig| config.audiences = ["a", "b", "c"].map(str::to_owned).to_vec();
    let api = Arc::new(FakeApi { audiences: vec!["b".into()], ..FakeApi::default() });
    assert!(review(&api, wanted).authenticate(bearer(&with_token("good"))).await.is_ok());
    assert_eq!(*api.asked_for.lock(), ["a", "b", "c"]);
    let ignorant = Arc::new(FakeApi::default());
    assert!(review(&ignorant, wanted).authenticate(bearer(&with_token("good"))).await.is_err());
}

/// D-150
#[tokio::test]
async fn a_scoped_token_gives_access_to_its_own_sandbox_only() {
    let file = secret_file(SECRET);
    let identity = scoped(&[&file]).authenticate(bearer(&with_token(&token(SECRET, "box-a")))).await.unwrap();
    assert!(identity.covers(&wanted("box-a", &[]), &index(), true).is_ok());
    for other in [wanted("box-b", &[]), wanted("box-a", &[("x-sandbox-namespace", "team-a")])] {
        assert!(matches!(identity.covers(&other, &index(), true), Err(RouterError::Forbidden)));
    }
}

/// D-151
#[tokio::test]
async fn bad_scoped_tokens_are_unauthenticated() {
    let file = secret_file(SECRET);
    let authorizer = scoped(&[&file]);
    for bad in [&token(&[b'x'; 32], "box-a"), "v1.a.b", "garbage"] {
        assert!(
            matches!(authorizer.authenticate(bearer(&with_token(bad))).await, Err(RouterError::Unauthenticated)),
            "{bad}"
        );
    }
    assert!(matches!(authorizer.authenticate(None).await, Err(RouterError::Unauthenticated)));
}

/// D-155, D-156
#[tokio::test]
async fn a_scoped_callers_address_and_uid_must_be_the_sandboxs_own() {
    let file = secret_file(SECRET);
    let identity = scoped(&[&file]).authenticate(bearer(&with_token(&token(SECRET, "box-a")))).await.unwrap();
    let index = index();
    for agreeing in [
        &[("x-sandbox-pod-ip", "10.0.0.7")][..],
        &[("x-sandbox-uid", "u1")],
        &[("x-sandbox-uid", "u1"), ("x-sandbox-pod-ip", "10.0.0.7")],
    ] {
        assert!(identity.covers(&wanted("box-a", agreeing), &index, true).is_ok(), "{agreeing:?}");
    }
    for conflicting in [
        &[("x-sandbox-pod-ip", "10.0.0.8")][..],
        &[("x-sandbox-uid", "u2")],
        &[("x-sandbox-uid", "u1"), ("x-sandbox-pod-ip", "10.0.0.8")],
    ] {
        assert!(identity.covers(&wanted("box-a", conflicting), &index, true).is_err(), "{conflicting:?}");
    }
    let unknown = PodIndex::default();
    let stale = wanted("box-a", &[("x-sandbox-pod-ip", "10.0.0.7")]);
    assert!(identity.covers(&stale, &unknown, true).is_ok(), "it is compared when there is a Pod");
    assert!(identity.covers(&stale, &unknown, false).is_err(), "it would never be compared");
    assert!(identity.covers(&wanted("box-a", &[("x-sandbox-uid", "u1")]), &unknown, true).is_err());
}

#[tokio::test]
async fn secrets_rotate_without_a_restart() {
    let (old, new) = (secret_file(SECRET), secret_file(&[b'n'; 32]));
    let authorizer = scoped(&[&new, &old]);
    for secret in [SECRET, &[b'n'; 32]] {
        assert!(authorizer.authenticate(bearer(&with_token(&token(secret, "box-a")))).await.is_ok());
    }
    std::fs::write(old.path(), [b'z'; 32]).unwrap();
    authorizer.secrets().unwrap().reload().unwrap();
    assert!(authorizer.authenticate(bearer(&with_token(&token(SECRET, "box-a")))).await.is_err());
    std::fs::write(old.path(), "short").unwrap();
    assert!(authorizer.secrets().unwrap().reload().is_err());
    assert!(
        authorizer.authenticate(bearer(&with_token(&token(&[b'z'; 32], "box-a")))).await.is_ok(),
        "the old ones stay"
    );
}

/// D-153
#[test]
fn a_short_secret_stops_the_start() {
    let file = secret_file(b"short");
    let config = modes(|modes| modes.scoped_token_secrets = vec![file.path().to_owned()]);
    assert!(matches!(Authorizer::new(&config, Reviews::default()), Err(AuthzSetupError::Secret { .. })));
    let missing = modes(|modes| modes.scoped_token_secrets = vec!["/nonexistent".into()]);
    assert!(matches!(Authorizer::new(&missing, Reviews::default()), Err(AuthzSetupError::ReadSecret { .. })));
}

/// D-168
#[tokio::test]
async fn a_static_token_is_compared_without_surrounding_space() {
    let config = modes(|modes| modes.static_token = Some(StaticToken(" secret\n".into())));
    let authorizer = Authorizer::new(&config, Reviews::default()).unwrap();
    assert!(authorizer.authenticate(bearer(&with_token("secret"))).await.is_ok());
    let missing = authorizer.authenticate(None).await.unwrap_err();
    assert_eq!(
        (missing.status().as_u16(), missing.to_string().as_str()),
        (401, "Missing or invalid Authorization header.")
    );
    let wrong = authorizer.authenticate(bearer(&with_token("wrong"))).await.unwrap_err();
    assert_eq!((wrong.status().as_u16(), wrong.to_string().as_str()), (401, "Invalid token."));
    assert!(format!("{config:?}").contains("StaticToken([redacted])"));
}

#[tokio::test]
async fn combined_modes_each_check_their_own_tokens() {
    let file = secret_file(SECRET);
    let api = Arc::new(FakeApi::default());
    let config = modes(|modes| {
        modes.token_review = Some(TokenReviewConfig::default());
        modes.scoped_token_secrets = vec![file.path().to_owned()];
    });
    let authorizer = Authorizer::new(&config, reviews(&api)).unwrap();
    assert!(matches!(authorizer.authenticate(bearer(&with_token("good"))).await, Ok(Identity::Unrestricted)));
    let identity = authorizer.authenticate(bearer(&with_token(&token(SECRET, "box-a")))).await.unwrap();
    assert!(identity.covers(&wanted("box-b", &[]), &index(), true).is_err());
    let calls = api.calls.load(Ordering::Relaxed);
    assert!(authorizer.authenticate(bearer(&with_token(&token(&[b'x'; 32], "box-a")))).await.is_err());
    assert_eq!(api.calls.load(Ordering::Relaxed), calls, "an invalid scoped token is not sent to the API");
    assert!(authorizer.authenticate(None).await.is_err(), "anonymous callers need one of the modes");
}

/// Grants by user, namespace and Pod name; an empty Pod name grants all of the namespace.
#[derive(Default)]
struct FakeAccess {
    grants: parking_lot::Mutex<Vec<(&'static str, &'static str, &'static str)>>,
    calls: AtomicUsize,
    down: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl AccessReview for FakeAccess {
    async fn may_forward(&self, caller: &Caller, namespace: &str, pod: &str) -> Result<bool, kube::Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.down.load(Ordering::Relaxed) {
            return Err(kube::Error::LinesCodecMaxLineLengthExceeded);
        }
        let granted = |grant: &(&str, &str, &str)| {
            (grant.0, grant.1) == (caller.user.as_str(), namespace) && (grant.2.is_empty() || grant.2 == pod)
        };
        Ok(self.grants.lock().iter().any(granted))
    }
}

fn rbac(access: &Arc<FakeAccess>, access_ttl: Duration) -> Authorizer {
    let config = modes(|modes| {
        modes.token_review = Some(TokenReviewConfig::default());
        modes.rbac = true;
    });
    let token: Arc<dyn TokenReview> = Arc::new(FakeApi::default());
    let reviews = Reviews { token: Some(token), access: Some(Arc::clone(access) as _), access_ttl };
    Authorizer::new(&config, reviews).unwrap()
}

async fn reaches(authorizer: &Authorizer, token: &str, request: &SandboxRequest) -> Result<(), RouterError> {
    let identity = authorizer.authenticate(bearer(&with_token(token))).await?;
    authorizer.authorize(&identity, request, &index(), true).await
}

#[tokio::test]
async fn mode_rbac_decides_by_the_namespace_of_the_sandbox() {
    let access = Arc::new(FakeAccess::default());
    access.grants.lock().push(("alice", "default", ""));
    let authorizer = rbac(&access, Duration::from_secs(30));
    let own = wanted("box-a", &[]);
    let foreign = wanted("box-a", &[("x-sandbox-namespace", "team-b")]);
    assert!(reaches(&authorizer, "good-alice", &own).await.is_ok());
    assert!(matches!(reaches(&authorizer, "good-alice", &foreign).await, Err(RouterError::Forbidden)));
    assert!(matches!(reaches(&authorizer, "good-bob", &own).await, Err(RouterError::Forbidden)));
    assert!(matches!(reaches(&authorizer, "bad", &own).await, Err(RouterError::Unauthenticated)));
    assert!(matches!(authorizer.authenticate(None).await, Err(RouterError::Unauthenticated)));
}

#[tokio::test]
async fn mode_rbac_accepts_rights_to_a_single_pod_by_name() {
    let access = Arc::new(FakeAccess::default());
    access.grants.lock().extend([("alice", "default", "p"), ("bob", "default", "other")]);
    let authorizer = rbac(&access, Duration::from_secs(30));
    assert!(reaches(&authorizer, "good-alice", &wanted("box-a", &[])).await.is_ok(), "its Pod is named p");
    assert!(reaches(&authorizer, "good-bob", &wanted("box-a", &[])).await.is_err());
    assert!(
        reaches(&authorizer, "good-alice", &wanted("no-pod", &[])).await.is_err(),
        "it has no Pod that could match"
    );
}

#[tokio::test]
async fn a_user_cannot_name_the_address_or_uid_of_another_sandbox() {
    let access = Arc::new(FakeAccess::default());
    access.grants.lock().push(("alice", "default", ""));
    let authorizer = rbac(&access, Duration::from_secs(30));
    for foreign in [("x-sandbox-pod-ip", "10.0.0.8"), ("x-sandbox-uid", "u2")] {
        let request = wanted("box-a", &[foreign]);
        assert!(
            matches!(reaches(&authorizer, "good-alice", &request).await, Err(RouterError::Forbidden)),
            "{foreign:?}"
        );
    }
}

#[tokio::test]
async fn access_decisions_are_cached_only_for_their_time_to_live() {
    let access = Arc::new(FakeAccess::default());
    access.grants.lock().push(("alice", "default", ""));
    let cached = rbac(&access, Duration::from_secs(30));
    for _ in 0..3 {
        assert!(reaches(&cached, "good-alice", &wanted("box-a", &[])).await.is_ok());
    }
    assert_eq!(access.calls.load(Ordering::Relaxed), 1);
    let uncached = rbac(&access, Duration::ZERO);
    assert!(reaches(&uncached, "good-alice", &wanted("box-a", &[])).await.is_ok());
    access.grants.lock().clear();
    assert!(reaches(&uncached, "good-alice", &wanted("box-a", &[])).await.is_err(), "decided anew");
}

#[tokio::test]
async fn a_failed_access_review_refuses_and_hides_the_cause() {
    let access = Arc::new(FakeAccess::default());
    access.down.store(true, Ordering::Relaxed);
    let error =
        reaches(&rbac(&access, Duration::from_secs(30)), "good-alice", &wanted("box-a", &[])).await.unwrap_err();
    assert_eq!(error.status().as_u16(), 500);
    assert!(!error.to_string().contains("Lines"), "{error}");
}

#[test]
fn mode_rbac_needs_an_api() {
    let config = modes(|modes| {
        modes.token_review = Some(TokenReviewConfig::default());
        modes.rbac = true;
    });
    let token: Arc<dyn TokenReview> = Arc::new(FakeApi::default());
    let reviews = Reviews { token: Some(token), ..Reviews::default() };
    assert!(matches!(Authorizer::new(&config, reviews), Err(AuthzSetupError::NoApi)));
}

#[tokio::test]
async fn an_open_stream_is_checked_by_its_token() {
    let api = Arc::new(FakeApi::default());
    let authorizer = review(&api, |config| config.ttl = Duration::ZERO);
    let admission = Admission::new(Credential::Token("good".into()), &wanted("box-a", &[]), &index());
    assert!(authorizer.admit_again(&admission).await.is_ok());
    api.revoked.store(true, Ordering::Relaxed);
    assert!(matches!(authorizer.admit_again(&admission).await, Err(RouterError::Unauthenticated)));
}

#[test]
fn an_api_that_restarts_does_not_end_open_streams() {
    let (short, long) = (Duration::from_secs(240), Duration::from_secs(301));
    for unanswered in [RouterError::TokenReview, RouterError::AccessReview] {
        assert!(!ends(&unanswered, short) && ends(&unanswered, long), "{unanswered}");
    }
    for refused in [RouterError::Unauthenticated, RouterError::Forbidden] {
        assert!(ends(&refused, Duration::ZERO), "{refused}");
    }
}

#[tokio::test]
async fn an_open_stream_is_checked_by_its_users_right() {
    let access = Arc::new(FakeAccess::default());
    let authorizer = rbac(&access, Duration::ZERO);
    let client_facts = [("x-sandbox-pod-ip", "10.0.0.7"), ("x-sandbox-uid", "u1")];
    for credential in [
        Credential::Token("good-alice".into()),
        Credential::User(Arc::new(Caller { user: "alice".to_owned(), ..Caller::default() })),
    ] {
        access.grants.lock().push(("alice", "default", "p"));
        let index = index();
        let admission = Admission::new(credential, &wanted("box-a", &client_facts), &index);
        index.remove("default", "p");
        assert!(authorizer.admit_again(&admission).await.is_ok(), "its Pod may be unready for a moment");
        access.grants.lock().clear();
        assert!(matches!(authorizer.admit_again(&admission).await, Err(RouterError::Forbidden)));
    }
}

#[tokio::test]
async fn an_open_stream_is_checked_by_the_present_secrets() {
    let file = secret_file(SECRET);
    let authorizer = scoped(&[&file]);
    let credential = Credential::Token(token(SECRET, "box-a").into());
    let admission = Admission::new(credential, &wanted("box-a", &[]), &index());
    assert!(authorizer.admit_again(&admission).await.is_ok());
    std::fs::write(file.path(), [b'x'; 32]).unwrap();
    authorizer.secrets().unwrap().reload().unwrap();
    assert!(matches!(authorizer.admit_again(&admission).await, Err(RouterError::Unauthenticated)));
}
