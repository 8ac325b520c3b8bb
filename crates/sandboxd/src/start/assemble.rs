//! Builds the application: the dialects over one sandbox.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use agent_sandbox_protocol::workspace::{Metadata, is_public_variable};
use tokio::sync::Semaphore;

use super::RunError;
use crate::config::Config;
use crate::config::variables::{LISTEN_FDNAMES, LISTEN_FDS, LISTEN_PID};
use crate::core::files::{FileError, Root};
use crate::core::history::History;
use crate::core::paths::{Mode, PathResolver, RelPath};
use crate::core::processes::Reaper;
use crate::core::processes::launch::Environment;
use crate::core::processes::managed::Registry;
use crate::core::{Limits, Sandbox};
use crate::dialects::envd::{Envd, Settings};
use crate::dialects::interpreter::Interpreter;
use crate::dialects::native::{IdempotencyKeys, Native};
use crate::dialects::runtime::Runtime;
use crate::dialects::workspace::{self, Workspace};
use crate::server::{App, E2b, Token, page_rules};

/// Default root of the workspace dialect.
const WORKSPACE: &str = "/workspace";

/// The history below the home folder, as the XDG base directory specification places it.
const HISTORY_IN_HOME: &str = ".local/state/agent-sandbox/history";

const RESOLVER: &str = "/etc/resolv.conf";

fn unusable(path: &Path) -> impl FnOnce(FileError) -> RunError + use<> {
    let path = path.to_path_buf();
    move |source| RunError::Directory { path, source }
}

pub(super) fn app(config: &Config, base: &Path, reaper: &Reaper, token: Option<Token>) -> Result<App, RunError> {
    let stopping = Arc::new(AtomicBool::new(false));
    let sandbox = Arc::new(sandbox(config, base, reaper)?);
    let runtime = Runtime {
        sandbox: Arc::clone(&sandbox),
        mode: config.mode,
        exec_mode: config.exec_mode,
        time_limit: config.exec_timeout,
    };
    let root_dir = root_directory(config, base)?;
    let workspace = Arc::new(Workspace {
        root: Arc::new(Root::open(&root_dir).map_err(unusable(&root_dir))?),
        aliases: aliases(&root_dir),
        metadata: metadata(&sandbox.env, &config.metadata_env_prefix),
        sandbox: Arc::clone(&sandbox),
        chunk_size: config.stream_chunk_size,
        signal_exit_minus_one: config.signal_exit_minus_one,
        started: Instant::now(),
        stopping: Arc::clone(&stopping),
    });
    let e2b = (!config.envd.is_empty() || !config.interpreter.is_empty()).then(|| {
        let settings = Arc::new(Settings::default());
        E2b {
            envd: Arc::new(Envd::new(Arc::clone(&sandbox), Arc::clone(&settings))),
            interpreter: Arc::new(Interpreter::new(Arc::clone(&sandbox), settings)),
        }
    });
    let native = Native {
        interpreter: Interpreter::native(Arc::clone(&sandbox)),
        sandbox,
        keys: IdempotencyKeys::new(),
        base_dir: base.display().to_string(),
        root_dir: root_dir.display().to_string(),
        started: Instant::now(),
    };
    let resolver = std::fs::read_to_string(RESOLVER).unwrap_or_default();
    let pages = page_rules(config.allowed_hosts.clone(), config.allowed_origins.clone(), &resolver)?;
    Ok(App {
        runtime: Arc::new(runtime),
        grpc: workspace::routes(&workspace),
        workspace,
        native: Arc::new(native),
        e2b,
        token,
        router: config.router.clone(),
        pages,
        stopping,
        activity: Arc::default(),
    })
}

fn sandbox(config: &Config, base: &Path, reaper: &Reaper) -> Result<Sandbox, RunError> {
    let paths = match config.mode {
        Mode::Natural => PathResolver::natural(&config.sandbox_root, base),
        Mode::Strict => PathResolver::strict(base),
    };
    let limits = Limits {
        command_slots: Arc::new(Semaphore::new(config.max_processes)),
        kill_grace: config.kill_grace,
        output_bytes: config.output_limit,
        upload_bytes: config.max_body,
    };
    let env = command_environment(base);
    let history = History::new(history_files(config, &env));
    let slots = Arc::clone(&limits.command_slots);
    Ok(Sandbox {
        shell: config.shell.clone(),
        paths: paths.map_err(unusable(base))?,
        env: Arc::new(env),
        reaper: reaper.clone(),
        registry: Registry::new(reaper.clone(), slots, Arc::clone(&history), limits.kill_grace),
        history,
        limits,
    })
}

/// The configured file, and one in the home folder for a daemon that may not write there.
fn history_files(config: &Config, env: &Environment) -> Vec<PathBuf> {
    let Some(configured) = &config.history_file else { return Vec::new() };
    let home = env.get("HOME").map(|home| Path::new(home).join(HISTORY_IN_HOME));
    std::iter::once(configured.clone()).chain(home).collect()
}

/// The daemon's environment, with PWD as the configured path of the working directory.
fn command_environment(base: &Path) -> Environment {
    let mut env = Environment::of_daemon();
    env.set("PWD", base);
    env.remove("OLDPWD");
    for ours in [LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES] {
        env.remove(ours);
    }
    if env.get("HOME").is_none_or(|home| home.is_empty()) {
        env.set("HOME", base);
    }
    env
}

/// Creates a configured root if it is missing; uses the default root only if it exists or can be created.
fn root_directory(config: &Config, base: &Path) -> Result<PathBuf, RunError> {
    let Some(configured) = &config.root_dir else {
        let usual = Path::new(WORKSPACE);
        let there = usual.is_dir() || std::fs::create_dir(usual).is_ok();
        return Ok(if there { usual.into() } else { base.into() });
    };
    std::fs::create_dir_all(configured).map_err(|error| unusable(configured)(error.into()))?;
    Ok(configured.clone())
}

fn aliases(root: &Path) -> Vec<RelPath> {
    let canonical = std::fs::canonicalize(root).ok();
    let paths = [Some(root.to_path_buf()), canonical];
    paths.iter().flatten().filter_map(|path| RelPath::of_directory(path).ok()).collect()
}

fn metadata(env: &Environment, prefix: &str) -> Metadata {
    let public = env.iter().filter_map(|(name, value)| {
        let name = name.to_str().filter(|name| is_public_variable(name, prefix))?;
        Some((name.to_owned(), value.to_string_lossy().into_owned()))
    });
    Metadata { env: public.collect() }
}
