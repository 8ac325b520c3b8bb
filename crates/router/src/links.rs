//! Links to ports of sandboxes: who holds one reaches some ports of one sandbox until it expires or is revoked.
//!
//! The token of a link is signed, and its record is in an annotation of the Sandbox. A link is valid while both are: the
//! signature keeps those who can write the annotation from making links, the record makes links revocable. Every router
//! reads the records, so that a link is valid at all of them or at none, also after a restart.

pub(crate) mod endpoint;
mod store;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_api::links::{LinkRecord, TooManyLinks};
use agent_sandbox_protocol::link_token::LinkClaims;
use agent_sandbox_protocol::scoped_token::VerifyError;
use http::StatusCode;
use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::auth::{Secrets, unix_seconds};
use crate::error::RouterError;
use store::Store;

/// Age up to which records that were read count as current. A revoked link ends everywhere within this time.
const FRESH: Duration = Duration::from_secs(1);
/// Time without an answer of the API after which open responses and upgraded connections of links end.
const UNANSWERED: Duration = Duration::from_secs(30);
/// Number of sandboxes whose records are kept in memory.
const MAX_KNOWN: usize = 4096;

/// Settings of links.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Files with secrets; the first signs, each verifies. They are those of scoped tokens where these are used.
    pub secrets: Vec<PathBuf>,
    /// URL of this router for browsers, such as `https://sandboxes.example.com`; `None` means HTTPS at the domain of
    /// sandboxes in hosts.
    pub public_url: Option<String>,
    /// The daemon in sandboxes is the engine's: it listens on ports 8080 and 9090 only where the Pod declares them.
    pub injected_daemon: bool,
}

/// Why a link was refused, or could not be created or revoked. `Display` is the text that clients see.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("this link has expired")]
    Expired,
    #[error("this link was revoked, or its sandbox was deleted")]
    Revoked,
    /// While a request was under way.
    #[error("this link has expired or was revoked")]
    Ended,
    #[error("this link is not for port {0}")]
    Port(u16),
    #[error("this link is for reading only: GET, HEAD and OPTIONS, without WebSockets")]
    ReadOnly,
    #[error("the router cannot check now whether this link was revoked; try again")]
    Unchecked,
    #[error("links are created and revoked with a token of the Kubernetes API, not with one for a sandbox")]
    Credential,
    #[error("{0}")]
    Request(String),
    #[error("there is no sandbox {name} in namespace {namespace}")]
    NoSandbox { namespace: String, name: String },
    #[error("the sandbox has no link {0}")]
    NoLink(String),
    #[error(transparent)]
    TooMany(#[from] TooManyLinks),
    #[error("the sandbox changed at the same time; try again")]
    Conflict,
    #[error("the link could not be recorded: the API did not accept it")]
    Api,
}

impl LinkError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Expired | Self::Revoked | Self::Ended => StatusCode::UNAUTHORIZED,
            Self::Port(_) | Self::ReadOnly | Self::Credential => StatusCode::FORBIDDEN,
            Self::Unchecked => StatusCode::SERVICE_UNAVAILABLE,
            Self::Request(_) => StatusCode::BAD_REQUEST,
            Self::NoSandbox { .. } | Self::NoLink(_) => StatusCode::NOT_FOUND,
            Self::TooMany(_) | Self::Conflict => StatusCode::CONFLICT,
            Self::Api => StatusCode::BAD_GATEWAY,
        }
    }
}

/// Verifies links, and creates and revokes them.
pub(crate) struct Links {
    config: LinkConfig,
    secrets: Arc<Secrets>,
    store: Store,
    /// By namespace and name. Only holders of signed tokens add entries.
    known: Mutex<HashMap<(String, String), Arc<Known>>>,
}

/// The records of one sandbox as last read; `None` if they could not be read. The lock is held while they are read, so
/// that one request reads for all.
#[derive(Default)]
struct Known(tokio::sync::Mutex<Option<(Instant, Option<Vec<LinkRecord>>)>>);

impl Links {
    pub(crate) fn new(config: LinkConfig, secrets: Arc<Secrets>, client: Client) -> Arc<Self> {
        Arc::new(Self { config, secrets, store: Store::new(client), known: Mutex::default() })
    }

    pub(crate) fn secrets(&self) -> &Arc<Secrets> {
        &self.secrets
    }

    /// Checks the token of a link: signature, expiry, and that it was not revoked.
    pub(crate) async fn verify(&self, token: &str) -> Result<Arc<LinkClaims>, RouterError> {
        let claims = match self.secrets.verify_link(token, unix_seconds()) {
            Ok(claims) => claims,
            Err(VerifyError::Expired) => return Err(LinkError::Expired.into()),
            Err(_) => return Err(RouterError::Unauthenticated),
        };
        match self.is_recorded(&claims).await? {
            true => Ok(Arc::new(claims)),
            false => Err(LinkError::Revoked.into()),
        }
    }

    /// Completes when the link has expired or was revoked, or when the API gives no answer for too long.
    pub(crate) async fn ended(self: Arc<Self>, claims: Arc<LinkClaims>) {
        let mut answered = Instant::now();
        loop {
            let left = u64::try_from(claims.expires - unix_seconds()).unwrap_or(0);
            if left == 0 {
                return;
            }
            tokio::time::sleep(FRESH.min(Duration::from_secs(left))).await;
            match self.is_recorded(&claims).await {
                Ok(true) => answered = Instant::now(),
                Ok(false) => return,
                Err(_) if answered.elapsed() > UNANSWERED => return,
                Err(_) => {}
            }
        }
    }

    async fn is_recorded(&self, claims: &LinkClaims) -> Result<bool, LinkError> {
        let known = self.known(&claims.namespace, &claims.name);
        let mut read = known.0.lock().await;
        let current = match &*read {
            Some((at, records)) if at.elapsed() < FRESH => records,
            _ => {
                let records = self.store.records(&claims.namespace, &claims.name).await.inspect_err(|error| {
                    tracing::warn!(%error, namespace = %claims.namespace, sandbox = %claims.name, "Links of a sandbox could not be read");
                });
                &read.insert((Instant::now(), records.ok())).1
            }
        };
        let now = unix_seconds();
        let current = current.as_ref().ok_or(LinkError::Unchecked)?;
        Ok(current.iter().any(|record| record.id == claims.id && record.expires > now))
    }

    fn known(&self, namespace: &str, name: &str) -> Arc<Known> {
        let mut known = self.known.lock();
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(found) = known.get(&key) {
            return Arc::clone(found);
        }
        if known.len() >= MAX_KNOWN {
            // Reading again costs one request per sandbox in use.
            known.clear();
        }
        Arc::clone(known.entry(key).or_default())
    }

    /// Forgets what was read, after a change by this router.
    fn forget(&self, namespace: &str, name: &str) {
        self.known.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }
}
