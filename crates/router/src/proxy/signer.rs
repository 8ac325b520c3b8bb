//! Signs requests to sandboxes: their daemons can require a token that only the router can make.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_sandbox_protocol::sandbox_token::{KeyError, SANDBOX_TOKEN, SigningKey};
use http::header::{HeaderMap, HeaderValue};

use crate::resolve::index::LivePod;

/// How long a token is valid: enough for a difference between the clocks of two nodes.
const LIFETIME: Duration = Duration::from_secs(120);

/// Why the key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    #[error("cannot read key {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("key {path} cannot be used")]
    Key { path: PathBuf, source: KeyError },
}

/// The router's key.
#[derive(Debug)]
pub(crate) struct Signer(SigningKey);

impl Signer {
    pub(crate) fn load(path: &Path) -> Result<Self, SignerError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| SignerError::Read { path: path.to_owned(), source })?;
        SigningKey::from_pem(&text).map(Self).map_err(|source| SignerError::Key { path: path.to_owned(), source })
    }

    /// Adds a token for the Pod. One that the client sent is removed: where the Pod is not known, nothing is signed.
    pub(crate) fn sign(&self, headers: &mut HeaderMap, pod: Option<&LivePod>) {
        headers.remove(SANDBOX_TOKEN);
        let Some(pod) = pod else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expires = i64::try_from((now + LIFETIME).as_secs()).unwrap_or(i64::MAX);
        if let Ok(token) = HeaderValue::from_str(&self.0.sign(&pod.pod_uid, expires)) {
            headers.insert(SANDBOX_TOKEN, token);
        }
    }
}
