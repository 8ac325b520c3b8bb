//! The ServiceAccount tokens that were requested, and those that were revoked before they expire.
//!
//! Tokens are self-contained: the registry is not needed to verify one, except that it was not revoked. Tokens that are
//! bound to a Pod are not listed; they end with their Pod.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::tokens::Claims;
use crate::front::listener::{ListenerError, private_file};

/// Maximum number of listed tokens of a namespace. Of more, those that expire first are no longer listed.
const MAX_PER_NAMESPACE: usize = 100;

/// A token that was requested; never the token itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedToken {
    pub id: String,
    pub namespace: String,
    #[serde(rename = "serviceAccount")]
    pub account: String,
    pub audiences: Vec<String>,
    /// Seconds since 1970.
    pub issued: i64,
    /// Seconds since 1970.
    pub expires: i64,
}

#[derive(Default)]
pub struct TokenRegistry {
    /// `None` keeps the tokens in memory.
    path: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    issued: BTreeMap<String, IssuedToken>,
    /// Ids of revoked tokens, with the time from which they are refused anyway.
    revoked: BTreeMap<String, i64>,
}

impl State {
    fn forget_expired(&mut self, now: Timestamp) {
        self.issued.retain(|_, token| token.expires > now.as_second());
        self.revoked.retain(|_, expires| *expires > now.as_second());
    }
}

impl TokenRegistry {
    /// Reads the file at `path`, which may not exist yet.
    pub fn load(path: &Path) -> Result<Self, ListenerError> {
        let state = match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| ListenerError::Damaged { path: path.to_owned(), why: error.to_string() })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(source) => return Err(ListenerError::File { action: "read", path: path.to_owned(), source }),
        };
        Ok(Self { path: Some(path.to_owned()), state: Mutex::new(state) })
    }

    /// Lists a token from now on. A token is given to its requester only after this succeeded.
    pub fn record(&self, claims: &Claims, now: Timestamp) -> Result<(), ListenerError> {
        let bound = &claims.kubernetes;
        if bound.pod.is_some() {
            return Ok(());
        }
        let token = IssuedToken {
            id: claims.id.clone(),
            namespace: bound.namespace.clone(),
            account: bound.serviceaccount.name.clone(),
            audiences: claims.audiences.clone(),
            issued: claims.issued,
            expires: claims.expires,
        };
        self.change(now, |state| {
            state.issued.insert(token.id.clone(), token.clone());
            let own = || state.issued.values().filter(|other| other.namespace == token.namespace);
            if own().count() > MAX_PER_NAMESPACE
                && let Some(first) = own().min_by_key(|other| other.expires).map(|other| other.id.clone())
            {
                state.issued.remove(&first);
            }
        })
    }

    /// The listed tokens that are still valid, by the time of their request.
    pub fn list(&self, now: Timestamp) -> Vec<IssuedToken> {
        let state = self.state.lock();
        let valid = state.issued.values().filter(|token| token.expires > now.as_second());
        let mut tokens: Vec<IssuedToken> = valid.cloned().collect();
        tokens.sort_by(|a, b| (a.issued, &a.id).cmp(&(b.issued, &b.id)));
        tokens
    }

    /// Refuses a token from now on; it is no longer listed.
    pub fn revoke(&self, id: &str, expires: i64, now: Timestamp) -> Result<(), ListenerError> {
        self.change(now, |state| {
            state.issued.remove(id);
            state.revoked.insert(id.to_owned(), expires);
        })
    }

    pub fn is_revoked(&self, id: &str) -> bool {
        self.state.lock().revoked.contains_key(id)
    }

    /// Changes the state, in memory and then in the file. If the file cannot be written, nothing changes.
    fn change(&self, now: Timestamp, change: impl FnOnce(&mut State)) -> Result<(), ListenerError> {
        let mut state = self.state.lock();
        let mut next = state.clone();
        next.forget_expired(now);
        change(&mut next);
        if let Some(path) = &self.path {
            let text = serde_json::to_vec(&next).expect("texts and numbers are always JSON");
            private_file::write(path, &text)?;
        }
        *state = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use jiff::SignedDuration;

    use super::super::tokens::{KubernetesClaims, Named};
    use super::*;

    fn claims(namespace: &str, pod: Option<Named>, now: Timestamp) -> Claims {
        let serviceaccount = Named { name: "bot".into(), uid: "1".into() };
        let kubernetes =
            KubernetesClaims { namespace: namespace.into(), serviceaccount, pod, secret: None, node: None };
        Claims::new(kubernetes, vec!["a".into()], now, SignedDuration::from_hours(1))
    }

    #[test]
    fn tokens_and_revocations_are_kept_across_restarts_until_they_expire() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        let now: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        let registry = TokenRegistry::load(&path).unwrap();
        let (kept, ended) = (claims("ns", None, now), claims("ns", None, now));
        for one in [&kept, &ended, &claims("ns", Some(Named { name: "p".into(), uid: "2".into() }), now)] {
            registry.record(one, now).unwrap();
        }
        registry.revoke(&ended.id, ended.expires, now).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let registry = TokenRegistry::load(&path).unwrap();
        let listed: Vec<String> = registry.list(now).into_iter().map(|token| token.id).collect();
        assert_eq!(listed, std::slice::from_ref(&kept.id), "neither a revoked token nor a Pod's");
        assert!(registry.is_revoked(&ended.id) && !registry.is_revoked(&kept.id));
        let later = now + SignedDuration::from_hours(2);
        assert!(registry.list(later).is_empty());
        registry.record(&claims("ns", None, later), later).unwrap();
        assert!(!registry.is_revoked(&ended.id), "an expired token needs no entry");
    }

    #[test]
    fn one_namespace_cannot_displace_the_tokens_of_another() {
        let (registry, now) = (TokenRegistry::default(), Timestamp::UNIX_EPOCH);
        registry.record(&claims("quiet", None, now), now).unwrap();
        for _ in 0..2 * MAX_PER_NAMESPACE {
            registry.record(&claims("loud", None, now), now).unwrap();
        }
        let listed = registry.list(now);
        assert_eq!(listed.len(), MAX_PER_NAMESPACE + 1);
        assert!(listed.iter().any(|token| token.namespace == "quiet"));
    }
}
