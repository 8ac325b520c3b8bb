//! Authentication and authorisation: who may reach which sandbox. Authentication comes before any other processing of a
//! request.

mod access_review;
pub(crate) mod admission;
mod cache;
pub(crate) mod mint;
mod token_review;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_sandbox_protocol::link_token::LinkClaims;
use agent_sandbox_protocol::router_headers::SandboxRequest;
use agent_sandbox_protocol::scoped_token::{self, Claims, Secret, VerifyError};
use arc_swap::ArcSwap;
use http::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest, Sha256};

use crate::error::RouterError;
use crate::links::LinkError;
use crate::resolve::index::PodIndex;
use access_review::CachedAccessReview;
pub use access_review::{AccessReview, KubeAccessReview};
use token_review::TokenReviewer;
pub use token_review::{Caller, KubeTokenReview, ReviewOutcome, TokenReview};

/// How requests are authorised.
#[derive(Clone, Debug)]
pub enum AuthzConfig {
    /// Every client may reach every sandbox. The cluster default, for compatibility; the router logs a warning at every
    /// start.
    AllowAll,
    /// At least one of these must accept the request.
    AnyOf(Modes),
}

/// The modes that can be combined.
#[derive(Clone, Debug, Default)]
pub struct Modes {
    pub token_review: Option<TokenReviewConfig>,
    /// Callers that token review accepts reach only sandboxes of namespaces in which RBAC lets them forward ports.
    /// Without it they reach every sandbox, which is safe only where the cluster has a single tenant.
    pub rbac: bool,
    /// Files with secrets; each verifies, so that secrets can be rotated.
    pub scoped_token_secrets: Vec<PathBuf>,
    pub static_token: Option<StaticToken>,
}

/// A token that gives access to every sandbox.
#[derive(Clone)]
pub struct StaticToken(pub String);

impl std::fmt::Debug for StaticToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StaticToken([redacted])")
    }
}

/// Settings of the mode that reviews tokens with the API server.
#[derive(Clone, Debug)]
pub struct TokenReviewConfig {
    pub ttl: Duration,
    pub cache_size: usize,
    pub require_token: bool,
    pub audiences: Vec<String>,
}

impl Default for TokenReviewConfig {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(30), cache_size: 2048, require_token: false, audiences: Vec::new() }
    }
}

/// Why the modes cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum AuthzSetupError {
    #[error("cannot read scoped-token secret {path}")]
    ReadSecret { path: PathBuf, source: std::io::Error },
    #[error("scoped-token secret {path} cannot be used")]
    Secret { path: PathBuf, source: scoped_token::SecretError },
    #[error("modes tokenreview and rbac need a Kubernetes API, and none is configured")]
    NoApi,
}

/// The authenticated caller.
#[derive(Debug)]
pub(crate) enum Identity {
    /// May reach every sandbox.
    Unrestricted,
    /// May reach the one sandbox its token names.
    Scoped(Claims),
    /// May reach the ports of one sandbox that its link is for, with the link's methods.
    Link(Arc<LinkClaims>),
    /// May reach the sandboxes of namespaces in which it may `create pods/portforward`.
    User(Arc<Caller>),
}

/// How the authorizer asks the Kubernetes API; `None` where there is none.
#[derive(Default)]
pub(crate) struct Reviews {
    pub(crate) token: Option<Arc<dyn TokenReview>>,
    pub(crate) access: Option<Arc<dyn AccessReview>>,
    /// How long an access decision is cached; zero asks for every request.
    pub(crate) access_ttl: Duration,
}

/// Authenticates requests and decides which sandboxes their callers may reach.
pub(crate) struct Authorizer {
    modes: Option<ActiveModes>,
    /// Decides for callers that are known as users of the Kubernetes API, whatever the modes: mode `rbac` and
    /// port-forwards that the API server authenticated.
    access: Option<CachedAccessReview>,
}

struct ActiveModes {
    reviewer: Option<TokenReviewer>,
    rbac: bool,
    secrets: Option<Arc<Secrets>>,
    static_token: Option<[u8; 32]>,
}

/// The secrets in use, replaceable while the router runs.
pub(crate) struct Secrets {
    paths: Vec<PathBuf>,
    current: ArcSwap<Vec<Secret>>,
}

impl Secrets {
    pub(crate) fn load(paths: Vec<PathBuf>) -> Result<Self, AuthzSetupError> {
        let current = ArcSwap::from_pointee(read_secrets(&paths)?);
        Ok(Self { paths, current })
    }

    /// Reads the files again; on failure the old secrets stay in use.
    pub(crate) fn reload(&self) -> Result<(), AuthzSetupError> {
        self.current.store(Arc::new(read_secrets(&self.paths)?));
        Ok(())
    }

    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn verify(&self, token: &str, now: i64) -> Result<Claims, RouterError> {
        let secrets = self.current.load();
        secrets.iter().find_map(|secret| secret.verify(token, now).ok()).ok_or(RouterError::Unauthenticated)
    }

    /// Checks a link's token: any secret may have signed it.
    pub(crate) fn verify_link(&self, token: &str, now: i64) -> Result<LinkClaims, VerifyError> {
        let secrets = self.current.load();
        let mut failure = VerifyError::BadSignature;
        for secret in secrets.iter() {
            match secret.verify_link(token, now) {
                Err(VerifyError::BadSignature) => {}
                Err(other) => failure = other,
                valid => return valid,
            }
        }
        Err(failure)
    }

    /// Signs a link with the first secret.
    pub(crate) fn sign_link(&self, claims: &LinkClaims) -> Option<String> {
        self.current.load().first().map(|secret| secret.sign_link(claims))
    }
}

fn read_secrets(paths: &[PathBuf]) -> Result<Vec<Secret>, AuthzSetupError> {
    paths
        .iter()
        .map(|path| {
            let bytes =
                std::fs::read(path).map_err(|source| AuthzSetupError::ReadSecret { path: path.clone(), source })?;
            Secret::from_file_bytes(&bytes).map_err(|source| AuthzSetupError::Secret { path: path.clone(), source })
        })
        .collect()
}

impl Authorizer {
    pub(crate) fn new(config: &AuthzConfig, reviews: Reviews) -> Result<Self, AuthzSetupError> {
        let modes = match config {
            AuthzConfig::AllowAll => None,
            AuthzConfig::AnyOf(modes) => Some(modes),
        };
        let capacity =
            modes.and_then(|modes| modes.token_review.as_ref()).unwrap_or(&TokenReviewConfig::default()).cache_size;
        let access = reviews.access.map(|api| CachedAccessReview::new(api, reviews.access_ttl, capacity));
        let modes = modes.map(|modes| ActiveModes::new(modes, reviews.token)).transpose()?;
        if modes.as_ref().is_some_and(|modes| modes.rbac) && access.is_none() {
            return Err(AuthzSetupError::NoApi);
        }
        Ok(Self { modes, access })
    }

    /// The secrets, for watching their files.
    pub(crate) fn secrets(&self) -> Option<&Arc<Secrets>> {
        self.modes.as_ref().and_then(|modes| modes.secrets.as_ref())
    }

    /// Whether a request without a credential is accepted, for some sandbox at least.
    pub(crate) fn accepts_anonymous(&self) -> bool {
        self.modes.as_ref().is_none_or(|modes| modes.authenticate_anonymous().is_ok())
    }

    /// Whether a token that is not valid is refused. Mode `allow-all` accepts any.
    pub(crate) fn checks_tokens(&self) -> bool {
        self.modes.is_some()
    }

    /// Whether a token that is accepted may be refused later. The static token is valid as long as the router runs.
    pub(crate) fn tokens_may_end(&self) -> bool {
        self.modes.as_ref().is_some_and(|modes| modes.reviewer.is_some() || modes.secrets.is_some())
    }

    /// Authenticates the caller by its credential alone.
    pub(crate) async fn authenticate(&self, token: Option<&str>) -> Result<Identity, RouterError> {
        let Some(modes) = &self.modes else { return Ok(Identity::Unrestricted) };
        match token {
            Some(token) => modes.authenticate_token(token).await,
            None => modes.authenticate_anonymous(),
        }
    }

    /// Whether the caller may reach the sandbox that the request names.
    pub(crate) async fn authorize(
        &self,
        identity: &Identity,
        request: &SandboxRequest,
        index: &PodIndex,
        verified: bool,
    ) -> Result<(), RouterError> {
        identity.covers(request, index, verified)?;
        let live = index.by_name(request.namespace.as_str(), request.id.as_str());
        self.check_access(identity, request, live.as_ref().map(|live| &*live.pod)).await
    }

    /// Whether a user of the Kubernetes API may reach the sandbox, whose Pod is `pod`; others need no review.
    async fn check_access(
        &self,
        identity: &Identity,
        request: &SandboxRequest,
        pod: Option<&str>,
    ) -> Result<(), RouterError> {
        let Identity::User(caller) = identity else { return Ok(()) };
        let access = self.access.as_ref().ok_or(RouterError::Forbidden)?;
        access.check(caller, request.namespace.as_str(), pod).await
    }
}

impl ActiveModes {
    fn new(modes: &Modes, review: Option<Arc<dyn TokenReview>>) -> Result<Self, AuthzSetupError> {
        let reviewer = match (&modes.token_review, review) {
            (Some(config), Some(review)) => Some(TokenReviewer::new(config.clone(), review)),
            (Some(_), None) => return Err(AuthzSetupError::NoApi),
            (None, _) => None,
        };
        let secrets = match modes.scoped_token_secrets.as_slice() {
            [] => None,
            paths => Some(Arc::new(Secrets::load(paths.to_vec())?)),
        };
        let static_token = modes.static_token.as_ref().map(|token| digest(token.0.trim()));
        Ok(Self { reviewer, rbac: modes.rbac, secrets, static_token })
    }

    async fn authenticate_token(&self, token: &str) -> Result<Identity, RouterError> {
        if let Some(expected) = &self.static_token {
            use subtle::ConstantTimeEq;
            if bool::from(digest(token).ct_eq(expected)) {
                return Ok(Identity::Unrestricted);
            }
        }
        // Only a token of this form can be a scoped one. Each token is checked by one mode, so that an invalid scoped
        // token is never sent to the API server.
        match (&self.secrets, &self.reviewer) {
            (Some(secrets), _) if scoped_token::looks_scoped(token) => {
                secrets.verify(token, unix_seconds()).map(Identity::Scoped)
            }
            (_, Some(reviewer)) if self.rbac => reviewer.review(token).await.map(Identity::User),
            (_, Some(reviewer)) => reviewer.review(token).await.map(|_| Identity::Unrestricted),
            _ if self.static_token.is_some() => Err(RouterError::WrongStaticToken),
            _ => Err(RouterError::Unauthenticated),
        }
    }

    /// Anonymous callers are accepted only if token review is the only mode and does not require a token: combined with
    /// a stricter mode, this would bypass that mode.
    fn authenticate_anonymous(&self) -> Result<Identity, RouterError> {
        match &self.reviewer {
            Some(reviewer)
                if !self.rbac
                    && self.secrets.is_none()
                    && self.static_token.is_none()
                    && !reviewer.requires_token() =>
            {
                Ok(Identity::Unrestricted)
            }
            _ if self.static_token.is_some() => Err(RouterError::MissingStaticToken),
            _ => Err(RouterError::Unauthenticated),
        }
    }
}

impl Identity {
    /// Whether this identity stands for the sandbox, and port, that the request names.
    fn is_for(&self, request: &SandboxRequest) -> Result<(), RouterError> {
        let (namespace, name) = (request.namespace.as_str(), request.id.as_str());
        match self {
            Self::Scoped(claims) if claims.namespace != namespace || claims.name != name => Err(RouterError::Forbidden),
            Self::Link(claims) if claims.namespace != namespace || claims.name != name => Err(RouterError::Forbidden),
            Self::Link(claims) if !claims.ports.contains(&request.port) => Err(LinkError::Port(request.port).into()),
            Self::Unrestricted | Self::Scoped(_) | Self::Link(_) | Self::User(_) => Ok(()),
        }
    }

    /// Whether the request stays within what this identity stands for.
    ///
    /// Clients send the address and UID they know of. Except for unrestricted callers, those must be the named sandbox's
    /// own: access is decided by namespace and name. Without a live Pod there is nothing to compare an address with;
    /// `verified` says that the resolver compares it when there is one.
    pub(crate) fn covers(&self, request: &SandboxRequest, index: &PodIndex, verified: bool) -> Result<(), RouterError> {
        self.is_for(request)?;
        let (namespace, name) = (request.namespace.as_str(), request.id.as_str());
        if matches!(self, Self::Unrestricted) || request.pod_ip.is_none() && request.uid.is_none() {
            return Ok(());
        }
        let live = index.by_name(namespace, name);
        let uid_agrees = |uid: &str| live.as_ref().is_some_and(|live| *live.sandbox_uid == *uid);
        let ip_agrees = |ip| {
            live.as_ref()
                .map_or(verified, |live| live.has_ip(ip) || verified && index.was_address_of(namespace, name, ip))
        };
        let agrees = request.uid_str().is_none_or(uid_agrees) && request.pod_ip.is_none_or(ip_agrees);
        if agrees { Ok(()) } else { Err(RouterError::Forbidden) }
    }
}

/// The bearer token: scheme in any case, one space, the rest trimmed. `None` if it is empty or if there are two
/// headers.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

pub(crate) fn unix_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs() as i64)
}

#[cfg(test)]
mod tests;
