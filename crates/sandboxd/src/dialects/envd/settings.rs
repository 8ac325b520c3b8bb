//! What the control side tells a running sandbox: access token, environment variables, default user and directory.
//! Shared with the code interpreter, which has the same owner and the same token.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent_sandbox_protocol::e2b::Signed;
use http::{HeaderMap, Request, Response, StatusCode};
use serde::Deserialize;

use super::access::{self, AccessToken, Caller};
use super::plain_error;
use crate::http_io::body::Body;

/// The settings of this sandbox.
#[derive(Debug, Default)]
pub struct Settings {
    values: Mutex<Values>,
}

#[derive(Debug, Default)]
struct Values {
    token: Option<AccessToken>,
    env: BTreeMap<String, String>,
    user: Option<String>,
    directory: Option<String>,
}

/// The body of `POST /init`. Members that are absent leave a setting as it is.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Init {
    env_vars: Option<BTreeMap<String, String>>,
    access_token: Option<String>,
    default_user: Option<String>,
    default_workdir: Option<String>,
}

impl Settings {
    fn lock(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what `init` names. Variables are added to those that are set.
    pub(super) fn apply(&self, init: Init) -> Result<(), String> {
        let env = init.env_vars.unwrap_or_default();
        if let Some(name) = env.keys().find(|name| !is_variable(name)) {
            return Err(format!("envVars: {name:?} is not a variable's name"));
        }
        if let Some(name) = env.iter().find_map(|(name, value)| value.contains('\0').then_some(name)) {
            return Err(format!("envVars: the value of {name:?} holds a NUL byte"));
        }
        let mut values = self.lock();
        values.env.extend(env);
        if let Some(token) = init.access_token {
            values.token = AccessToken::new(token);
        }
        if let Some(user) = init.default_user {
            values.user = Some(user).filter(|user| !user.is_empty());
        }
        if let Some(directory) = init.default_workdir {
            values.directory = Some(directory).filter(|directory| !directory.is_empty());
        }
        Ok(())
    }

    /// The variables of every command.
    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        self.lock().env.clone()
    }

    pub(super) fn user(&self) -> Option<String> {
        self.lock().user.clone()
    }

    pub(super) fn directory(&self) -> Option<String> {
        self.lock().directory.clone()
    }

    /// Whether requests need an access token.
    pub(crate) fn has_token(&self) -> bool {
        self.lock().token.is_some()
    }

    /// Whether a request may be served.
    pub(crate) fn allows(&self, caller: Caller, headers: &HeaderMap) -> bool {
        access::allows(self.lock().token.as_ref(), caller, headers)
    }

    /// Whether the signature of an address replaces the token of a request that has none.
    pub(super) fn verifies(&self, signed: &Signed<'_>, signature: &str, now: i64) -> bool {
        self.lock().token.as_ref().is_some_and(|token| token.verifies(signed, signature, now))
    }

    /// Serves a request under the rules for pages in browsers: with an access token any page may send requests, because
    /// it has to know the token. Without a token a page of another origin is refused.
    pub(crate) async fn guard<F>(
        &self,
        request: Request<Body>,
        serve: impl FnOnce(Request<Body>) -> F,
    ) -> Response<Body>
    where
        F: Future<Output = Response<Body>>,
    {
        let from_page = access::is_cross_origin(request.headers());
        if from_page && self.lock().token.is_none() {
            let message = "this sandbox has no access token; requests of pages of other origins are refused";
            return plain_error(StatusCode::FORBIDDEN, message);
        }
        let mut response = match access::preflight(&request) {
            Some(response) => response,
            None => serve(request).await,
        };
        if from_page {
            access::share_with_pages(&mut response);
        }
        response
    }
}

/// Whether the kernel and every shell can hold a variable of this name.
pub(crate) fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(text: &str) -> Init {
        serde_json::from_str(text).expect("JSON")
    }

    /// E-104
    #[test]
    fn settings_are_added_and_kept() {
        let settings = Settings::default();
        settings.apply(init(r#"{"envVars":{"A":"1"},"accessToken":"t","volumeMounts":[]}"#)).expect("fine");
        settings.apply(init(r#"{"envVars":{"B":"2"},"defaultUser":"agent"}"#)).expect("fine");
        assert_eq!(settings.env().into_keys().collect::<Vec<_>>(), ["A", "B"]);
        assert_eq!(settings.user().as_deref(), Some("agent"));
        assert!(!settings.allows(Caller::Unchecked, &HeaderMap::new()), "the token stays");
        assert!(settings.apply(init(r#"{"envVars":{"A=B":""}}"#)).is_err());
        settings.apply(init(r#"{"accessToken":""}"#)).expect("fine");
        assert!(settings.allows(Caller::Unchecked, &HeaderMap::new()), "an empty token is none");
    }
}
