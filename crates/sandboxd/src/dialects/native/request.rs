//! Converts a request into a launch: program, working directory, user, environment, resource limits.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_protocol::native::{ErrorCode, ExecRequest, Limits};
use rustix::process::Resource;

use super::error::{ApiError, with_path};
use crate::core::Sandbox;
use crate::core::files::Follow;
use crate::core::paths::Purpose;
use crate::core::processes::launch::Identity;
use crate::core::processes::users;
use crate::core::processes::{Launch, Stdin};
use crate::core::terminals::window_size;

/// Maximum time limit; longer ones are reduced to it.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Converts a request. `interactive` commands get a pipe as standard input.
pub(super) fn to_launch(sandbox: &Sandbox, request: &ExecRequest, interactive: bool) -> Result<Launch, ApiError> {
    let argv: Vec<OsString> = match (&request.command, request.argv.as_slice()) {
        (Some(text), []) => vec![sandbox.shell.clone(), "-c".into(), text.into()],
        (None, []) => return Err(ApiError::invalid("either command or argv is required")),
        (None, argv) => argv.iter().map(OsString::from).collect(),
        (Some(_), _) => return Err(ApiError::invalid("command and argv exclude each other")),
    };
    let cwd = request.cwd.as_deref().unwrap_or_default();
    let path = sandbox.paths.resolve(cwd.as_bytes(), Purpose::List)?;
    let opened = sandbox.paths.root().locate(&path, Follow::Link).and_then(|located| located.open_directory());
    let directory = opened.map_err(with_path(if cwd.is_empty() { "the working directory" } else { cwd }))?;
    let identity = request.user.as_deref().map(resolve_identity).transpose()?;
    let mut env = (*sandbox.env).clone();
    if !cwd.is_empty() {
        env.set("PWD", sandbox.paths.absolute(&path));
    }
    if let Some(home) = identity.as_ref().and_then(|identity| users::home_of(identity.uid)) {
        env.set("HOME", home);
    }
    if request.terminal.is_some() && env.get("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        env.set("TERM", "xterm-256color");
    }
    for (name, value) in &request.env {
        if name.is_empty() || name.contains('=') {
            return Err(ApiError::invalid(format!("{name:?} is not a variable's name")));
        }
        env.set(name, value);
    }
    let terminal = request.terminal.map(|size| window_size(size.columns, size.rows));
    Ok(Launch {
        argv,
        env: Arc::new(env),
        cwd: Arc::new(directory),
        stdin: if interactive { Stdin::Pipe } else { Stdin::Null },
        terminal,
        identity,
        rlimits: rlimits(&request.limits),
    })
}

/// The requested time limit; `None` if there is none.
pub(super) fn time_limit(request: &ExecRequest) -> Result<Option<Duration>, ApiError> {
    let Some(seconds) = request.timeout_seconds else { return Ok(None) };
    let limit = Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero());
    let limit = limit.ok_or_else(|| ApiError::invalid(format!("timeoutSeconds: {seconds} is not a number above 0")))?;
    Ok(Some(limit.min(MAX_TIME)))
}

fn rlimits(limits: &Limits) -> Vec<(Resource, u64)> {
    [
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::As, limits.memory_bytes),
        (Resource::Fsize, limits.file_size_bytes),
        (Resource::Nofile, limits.open_files),
        (Resource::Nproc, limits.processes),
    ]
    .into_iter()
    .filter_map(|(resource, limit)| Some((resource, limit?)))
    .collect()
}

fn resolve_identity(user: &str) -> Result<Identity, ApiError> {
    let identity = users::find(user).map_err(|error| ApiError::invalid(error.to_string()))?;
    let own = rustix::process::geteuid().as_raw();
    if identity.uid != own && !users::can_change_user() {
        let message = format!(
            "cannot run as {user:?}: the daemon is uid {own} and needs CAP_SETUID and CAP_SETGID to change that"
        );
        return Err(ApiError::new(ErrorCode::Denied, message));
    }
    Ok(identity)
}
