//! The user that a request names, its home, and the paths it means.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, header};

use super::connect::{Code, RpcError};
use super::settings::Settings;
use crate::core::Sandbox;
use crate::core::files::owned::Owner;
use crate::core::paths::{PathError, Purpose, RelPath};
use crate::core::processes::launch::{Environment, Identity};
use crate::core::processes::users::{self, Account};

/// The user of E2B's own images, and the default.
const DEFAULT_USER: &str = "user";

/// Why a request's user cannot be served, or what it names cannot be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserError {
    #[error("user {0:?} is not in /etc/passwd of this sandbox")]
    Unknown(String),
    #[error("cannot act as user {name:?}: the daemon is uid {own} and needs CAP_SETUID and CAP_SETGID to change that")]
    Denied { name: String, own: u32 },
    #[error("{given:?}: {source}")]
    Path { given: String, source: PathError },
}

impl From<UserError> for RpcError {
    fn from(error: UserError) -> Self {
        let code = match error {
            UserError::Unknown(_) => Code::Unauthenticated,
            UserError::Denied { .. } => Code::PermissionDenied,
            UserError::Path { .. } => Code::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}

/// A user of the sandbox.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) home: PathBuf,
    identity: Identity,
    /// Directory of commands, and of an empty path.
    pub(crate) directory: PathBuf,
}

impl User {
    /// The user named in the `Authorization` header, or the default one.
    pub(super) fn of_request(sandbox: &Sandbox, settings: &Settings, headers: &HeaderMap) -> Result<Self, UserError> {
        Self::named(sandbox, settings, basic_user(headers).as_deref())
    }

    /// The user with this name; without one, the default user.
    pub(crate) fn named(sandbox: &Sandbox, settings: &Settings, name: Option<&str>) -> Result<Self, UserError> {
        let name = name.filter(|name| !name.is_empty());
        let configured = settings.user();
        let base = base_directory(sandbox);
        let account = match name.or(configured.as_deref()) {
            Some(name) => match users::account(name) {
                Some(account) => Some(account),
                // Images of other origin do not have the user that programs for E2B expect.
                None if name == DEFAULT_USER => None,
                None => return Err(UserError::Unknown(name.to_owned())),
            },
            None => users::account(DEFAULT_USER).filter(|account| may_become(account.uid)),
        };
        let user = match account {
            Some(account) => Self::of_account(account, &base)?,
            None => Self::of_daemon(&base),
        };
        let directory = settings.directory().map_or(user.directory.clone(), PathBuf::from);
        Ok(Self { directory, ..user })
    }

    fn of_account(account: Account, base: &Path) -> Result<Self, UserError> {
        if !may_become(account.uid) {
            return Err(UserError::Denied { name: account.name, own: rustix::process::geteuid().as_raw() });
        }
        let identity = users::find(&account.name).map_err(|_| UserError::Unknown(account.name.clone()))?;
        let home = PathBuf::from(account.home);
        // A user without a home on this file system works in the sandbox's directory, like the daemon.
        let directory = if home.is_dir() { home.clone() } else { base.to_path_buf() };
        Ok(Self { name: account.name, home, identity, directory })
    }

    /// The user that the daemon runs as.
    pub(crate) fn daemons_own(sandbox: &Sandbox) -> Self {
        Self::of_daemon(&base_directory(sandbox))
    }

    fn of_daemon(base: &Path) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let name = users::account_of(uid).map_or_else(|| uid.to_string(), |account| account.name);
        Self {
            name,
            home: base.to_path_buf(),
            identity: Identity { uid, gid, groups: Vec::new() },
            directory: base.to_path_buf(),
        }
    }

    /// What a launch has to change; `None` for the daemon's own user.
    pub(crate) fn identity(&self) -> Option<Identity> {
        let own = rustix::process::geteuid().as_raw();
        (self.identity.uid != own).then(|| self.identity.clone())
    }

    pub(super) fn owner(&self) -> Owner {
        Owner { uid: self.identity.uid, gid: self.identity.gid }
    }

    /// The environment of the user's commands: that of the sandbox, of its settings, and of the user.
    pub(crate) fn environment(&self, sandbox: &Sandbox, settings: &Settings) -> Environment {
        let mut env = (*sandbox.env).clone();
        if env.get("PATH").is_none_or(|path| path.is_empty()) {
            env.set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        }
        env.set("HOME", self.home.as_os_str());
        env.set("USER", &self.name);
        env.set("LOGNAME", &self.name);
        env.set("E2B_SANDBOX", "true");
        for (name, value) in settings.env() {
            env.set(name, OsString::from(value));
        }
        env
    }

    /// The path below the sandbox's root that `given` means for this user: absolute, below the home with `~/` or
    /// without, and the default directory if it is empty.
    pub(crate) fn resolve(&self, sandbox: &Sandbox, given: &str) -> Result<RelPath, UserError> {
        let text: PathBuf = match given {
            "" => self.directory.clone(),
            "~" => self.home.clone(),
            given => match given.strip_prefix("~/") {
                Some(rest) => self.home.join(rest.trim_start_matches('/')),
                None => self.home.join(given),
            },
        };
        let path =
            RelPath::of_directory(&text).map_err(|source| UserError::Path { given: given.to_owned(), source })?;
        let root = RelPath::of_directory(&sandbox.paths.root().canonical()).unwrap_or_default();
        Ok(path.below(&root).unwrap_or(path))
    }
}

fn may_become(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw() || users::can_change_user()
}

fn base_directory(sandbox: &Sandbox) -> PathBuf {
    let base = sandbox.paths.resolve(b"", Purpose::List).unwrap_or_default();
    sandbox.paths.absolute(&base)
}

/// The name in `Authorization: Basic`, whose password is empty.
fn basic_user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    Some(text.split_once(':').map_or(text.as_str(), |(name, _)| name).to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// E-009
    #[test]
    fn the_user_is_in_the_authorization_header() {
        let mut headers = HeaderMap::new();
        assert_eq!(basic_user(&headers), None);
        for (value, name) in [("Basic cm9vdDo=", Some("root")), ("basic cm9vdA==", Some("root")), ("Bearer x", None)] {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(basic_user(&headers).as_deref(), name, "{value}");
        }
    }
}
