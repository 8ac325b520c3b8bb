//! Putting the parts together: the three dialects over the same processes, paths and limits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use agent_sandbox_protocol::workspace::{Metadata, is_public_variable};
use tokio::sync::Semaphore;

use super::RunError;
use crate::config::Config;
use crate::config::variables::{LISTEN_FDNAMES, LISTEN_FDS, LISTEN_PID};
use crate::files::{FileError, Root};
use crate::native::{Keys, Native};
use crate::paths::RelPath;
use crate::process::Reaper;
use crate::process::launch::Environment;
use crate::process::managed::Registry;
use crate::runtime::{Meaning, Mode, Runtime};
use crate::server::{App, Token};
use crate::workspace::{self, Workspace};

/// The sandboxd dialect's usual root.
const WORKSPACE: &str = "/workspace";

fn unusable(path: &Path) -> impl FnOnce(FileError) -> RunError + use<> {
    let path = path.to_path_buf();
    move |source| RunError::Directory { path, source }
}

pub(super) fn app(config: &Config, base: &Path, reaper: &Reaper, token: Option<Token>) -> Result<App, RunError> {
    let slots = Arc::new(Semaphore::new(config.max_processes));
    let stopping = Arc::new(AtomicBool::new(false));
    let registry = Arc::new(Registry::new(reaper.clone(), Arc::clone(&slots), config.kill_grace));
    let runtime = Arc::new(build_runtime(config, base, reaper, &slots)?);
    let root_dir = root_directory(config, base)?;
    let workspace = Arc::new(Workspace {
        root: Arc::new(Root::open(&root_dir).map_err(unusable(&root_dir))?),
        spellings: spellings(&root_dir),
        env: Arc::clone(&runtime.env),
        metadata: metadata(&runtime.env, &config.metadata_env_prefix),
        registry: Arc::clone(&registry),
        reaper: reaper.clone(),
        slots,
        grace: config.kill_grace,
        chunk_size: config.stream_chunk_size,
        signal_exit_minus_one: config.signal_exit_minus_one,
        max_body: config.max_body,
        started: Instant::now(),
        stopping: Arc::clone(&stopping),
    });
    let native = Arc::new(Native {
        runtime: Arc::clone(&runtime),
        registry,
        keys: Keys::new(),
        base_dir: base.display().to_string(),
        root_dir: root_dir.display().to_string(),
        started: Instant::now(),
    });
    Ok(App {
        runtime,
        grpc: workspace::routes(&workspace),
        workspace,
        native,
        token,
        stopping,
        activity: Arc::default(),
    })
}

fn build_runtime(config: &Config, base: &Path, reaper: &Reaper, slots: &Arc<Semaphore>) -> Result<Runtime, RunError> {
    let meaning = match config.mode {
        Mode::Natural => Meaning::natural(&config.sandbox_root, base).map_err(unusable(base))?,
        Mode::Strict => Meaning::strict(base).map_err(unusable(base))?,
    };
    Ok(Runtime {
        mode: config.mode,
        exec_mode: config.exec_mode,
        shell: config.shell.clone(),
        meaning,
        env: Arc::new(command_environment(base)),
        time_limit: config.exec_timeout,
        grace: config.kill_grace,
        output_limit: config.output_limit,
        max_body: config.max_body,
        reaper: reaper.clone(),
        slots: Arc::clone(slots),
    })
}

/// The daemon's environment, with the working directory under the name it was configured by.
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

/// A configured root is made when it is missing; the usual one only where that is possible.
fn root_directory(config: &Config, base: &Path) -> Result<PathBuf, RunError> {
    let Some(configured) = &config.root_dir else {
        let usual = Path::new(WORKSPACE);
        let there = usual.is_dir() || std::fs::create_dir(usual).is_ok();
        return Ok(if there { usual.into() } else { base.into() });
    };
    std::fs::create_dir_all(configured).map_err(|error| unusable(configured)(error.into()))?;
    Ok(configured.clone())
}

fn spellings(root: &Path) -> Vec<RelPath> {
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
