//! The cluster that a command talks to: the one that flags or the environment name, else the local engine. A kubeconfig
//! that names the local engine counts as that engine, also while it does not run.

use crate::args::GlobalArgs;
use agent_sandbox_client::{ClientError, LocalEngine, connect};
use agent_sandbox_engine::DataDir;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};
use thiserror::Error;

/// Where the cluster's configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    File { path: PathBuf, context: Option<String>, named_by: &'static str },
    Local,
}

/// A client for the chosen cluster, and the namespace to work in.
pub(crate) struct ClusterClient {
    pub(crate) client: kube::Client,
    /// What the client was made from.
    pub(crate) config: kube::Config,
    pub(crate) namespace: String,
    /// Name for messages; `None` for the local engine.
    remote_name: Option<String>,
    /// An engine was started for this command: its sandboxes may still be starting.
    pub(crate) just_started: bool,
}

#[derive(Debug, Error)]
pub(crate) enum ClusterError {
    #[error(
        "no engine runs on this machine and no cluster is named\n  start one here:      agent-sandbox create NAME, or agent-sandbox up --detach\n  or name a cluster:   --kubeconfig FILE, or KUBECONFIG"
    )]
    Nothing,
    #[error("cannot start the engine on this machine")]
    Start(#[source] Box<ClientError>),
    #[error("cannot find this program's own file")]
    Program(#[source] std::io::Error),
    #[error("no control plane is named: give its kubeconfig with --kubeconfig FILE, or KUBECONFIG")]
    NoControlPlane,
    #[error("cannot find the data folder: {0}")]
    DataDir(std::io::Error),
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        path: String,
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    #[error("cannot build a client for {name}")]
    Client {
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
}

impl ClusterClient {
    /// Like [`open`](Self::open), but starts the local engine if it is chosen and does not run, and says so.
    pub(crate) async fn open_or_start(global: &GlobalArgs) -> Result<Self, ClusterError> {
        match Self::open(global).await {
            Err(ClusterError::Nothing) => {}
            other => return other,
        }
        let data = DataDir::locate(global.data_dir.as_deref()).map_err(ClusterError::DataDir)?;
        let program = std::env::current_exe().map_err(ClusterError::Program)?;
        let started = LocalEngine::find_or_start_with(Some(data.path()), program.as_os_str()).await;
        let (_, just_started) = started.map_err(|error| ClusterError::Start(Box::new(error)))?;
        Ok(Self { just_started, ..Self::open(global).await? })
    }

    /// Like [`open_or_start`](Self::open_or_start), unless no engine has ever run on the data folder: then there is
    /// nothing that a command about existing objects could find.
    pub(crate) async fn open_used(global: &GlobalArgs) -> Result<Self, ClusterError> {
        let was_used =
            DataDir::locate(global.data_dir.as_deref()).is_ok_and(|data| LocalEngine::was_used(Some(data.path())));
        if was_used { Self::open_or_start(global).await } else { Self::open(global).await }
    }

    /// Chooses the cluster and creates a client for it. Sends no request.
    pub(crate) async fn open(global: &GlobalArgs) -> Result<Self, ClusterError> {
        let source = choose(global, |name| std::env::var_os(name));
        let data = DataDir::locate(global.data_dir.as_deref());
        let is_local = match (&source, &data) {
            (Source::Local, _) => true,
            (Source::File { path, context, .. }, Ok(data)) => {
                LocalEngine::is_named_by(Some(data.path()), std::slice::from_ref(path), context.as_deref())
            }
            (Source::File { .. }, Err(_)) => false,
        };
        let running = data.as_ref().ok().and_then(DataDir::running);
        let (path, context, named_by) = match source {
            Source::File { .. } if is_local && running.is_none() => return Err(ClusterError::Nothing),
            Source::File { path, context, named_by } => (path, context, Some(named_by)),
            Source::Local => {
                let data = data.map_err(ClusterError::DataDir)?;
                running.as_ref().ok_or(ClusterError::Nothing)?;
                (data.kubeconfig(), None, None)
            }
        };
        let (config, name) = load(&path, context).await?;
        let chosen_by = match named_by {
            Some(named_by) => format!("chosen by {named_by}: {}", path.display()),
            None => "the engine on this machine".to_owned(),
        };
        let api = config.cluster_url.to_string();
        let same = is_local || running.is_some_and(|running| api.trim_end_matches('/') == running.api);
        let remote_name = (!same).then(|| format!("{name} ({})", config.cluster_url));
        let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = connect(config.clone(), &chosen_by)
            .map_err(|source| ClusterError::Client { name, source: Box::new(source) })?;
        Ok(Self { client, config, namespace, remote_name, just_started: false })
    }

    /// Whether this is the engine on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.remote_name.is_none()
    }

    /// Prints on stderr which cluster is about to change, unless it is the local engine.
    pub(crate) fn announce_change(&self) {
        if let Some(name) = &self.remote_name {
            eprintln!("target: {name}, namespace {}", self.namespace);
        }
    }
}

/// The control plane that `node` joins: the chosen cluster, else, inside a cluster, that cluster. Never the local
/// engine, which has a node of its own.
pub(crate) async fn control_plane(global: &GlobalArgs) -> Result<kube::Config, ClusterError> {
    match choose(global, |name| std::env::var_os(name)) {
        Source::File { path, context, .. } => Ok(load(&path, context).await?.0),
        Source::Local => kube::Config::incluster().map_err(|_| ClusterError::NoControlPlane),
    }
}

/// Loads the configuration of a kubeconfig's context, and the context's name for messages.
async fn load(path: &Path, context: Option<String>) -> Result<(kube::Config, String), ClusterError> {
    let shown = path.display().to_string();
    let failed = |source| ClusterError::Kubeconfig { path: shown.clone(), source: Box::new(source) };
    let file = Kubeconfig::read_from(path).map_err(failed)?;
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let name = options.context.clone().or_else(|| file.current_context.clone()).unwrap_or_else(|| shown.clone());
    let config = kube::Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?;
    Ok((config, name))
}

/// `--kubeconfig`/`--context`, else `AGENT_SANDBOX_TARGET` (`local`, or FILE[#CONTEXT]), else `KUBECONFIG`, else the
/// local engine.
fn choose(global: &GlobalArgs, variable: impl Fn(&str) -> Option<OsString>) -> Source {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let named = variable("KUBECONFIG");
    if global.kubeconfig.is_some() || global.context.is_some() {
        let flag = global.kubeconfig.as_ref().map(|path| (PathBuf::from(path), "--kubeconfig"));
        let home = || variable("HOME").map(|home| (PathBuf::from(home).join(".kube/config"), "--context"));
        let found = flag.or_else(|| named.map(|path| (path.into(), "KUBECONFIG"))).or_else(home);
        let (path, named_by) = found.unwrap_or_default();
        return Source::File { path, context: global.context.clone(), named_by };
    }
    if let Some(target) = variable("AGENT_SANDBOX_TARGET") {
        let target = target.to_string_lossy().into_owned();
        let named_by = "AGENT_SANDBOX_TARGET";
        return match target.split_once('#') {
            _ if target == "local" => Source::Local,
            Some((path, context)) => Source::File { path: path.into(), context: Some(context.to_owned()), named_by },
            None => Source::File { path: target.into(), context: None, named_by },
        };
    }
    match named {
        Some(path) => Source::File { path: path.into(), context: None, named_by: "KUBECONFIG" },
        None => Source::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(kubeconfig: Option<&str>, context: Option<&str>) -> GlobalArgs {
        GlobalArgs {
            kubeconfig: kubeconfig.map(str::to_owned),
            context: context.map(str::to_owned),
            namespace: None,
            data_dir: None,
            verbose: 0,
        }
    }

    fn with(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<OsString> {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    }

    fn file(path: &str, context: Option<&str>, named_by: &'static str) -> Source {
        Source::File { path: path.into(), context: context.map(str::to_owned), named_by }
    }

    #[test]
    fn flags_win_over_the_environment() {
        let environment = with(&[("KUBECONFIG", "/env"), ("AGENT_SANDBOX_TARGET", "local"), ("HOME", "/home/a")]);
        assert_eq!(choose(&global(Some("/flag"), None), &environment), file("/flag", None, "--kubeconfig"));
        assert_eq!(choose(&global(None, Some("prod")), &environment), file("/env", Some("prod"), "KUBECONFIG"));
    }

    #[test]
    fn the_target_variable_wins_over_kubeconfig() {
        assert_eq!(
            choose(&global(None, None), with(&[("KUBECONFIG", "/env"), ("AGENT_SANDBOX_TARGET", "local")])),
            Source::Local
        );
        assert_eq!(
            choose(&global(None, None), with(&[("AGENT_SANDBOX_TARGET", "/f#c")])),
            file("/f", Some("c"), "AGENT_SANDBOX_TARGET")
        );
        assert_eq!(choose(&global(None, None), with(&[("KUBECONFIG", "/env")])), file("/env", None, "KUBECONFIG"));
    }

    #[test]
    fn the_default_kubeconfig_is_used_only_with_a_flag() {
        assert_eq!(choose(&global(None, None), with(&[("HOME", "/home/a")])), Source::Local);
        assert_eq!(
            choose(&global(None, Some("prod")), with(&[("HOME", "/home/a")])),
            file("/home/a/.kube/config", Some("prod"), "--context")
        );
    }
}
