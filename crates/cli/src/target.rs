//! Which cluster a command talks to: the one that flags or the environment name, else the running local engine.

use crate::{args::GlobalArgs, data::DataDir};
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};
use thiserror::Error;

/// Where to look for a cluster, before anything is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    File { path: PathBuf, context: Option<String> },
    Local,
}

/// A cluster to talk to.
pub(crate) struct Target {
    pub(crate) client: kube::Client,
    pub(crate) namespace: String,
    /// Set for a cluster that is not the local engine: what to call it.
    remote: Option<String>,
}

#[derive(Debug, Error)]
pub(crate) enum TargetError {
    #[error(
        "no engine runs on this machine and no cluster is named\n  start one here:      agent-sandbox up --detach\n  or name a cluster:   --kubeconfig FILE, or KUBECONFIG"
    )]
    Nothing,
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

impl Target {
    /// Finds the target and opens a client to it; sends nothing yet.
    pub(crate) async fn find(global: &GlobalArgs) -> Result<Self, TargetError> {
        let choice = choose(global, |name| std::env::var_os(name));
        let (path, context, local) = match choice {
            Choice::File { path, context } => (path, context, false),
            Choice::Local => {
                let data = DataDir::locate(global.data_dir.as_deref()).map_err(TargetError::DataDir)?;
                data.running().ok_or(TargetError::Nothing)?;
                (data.kubeconfig(), None, true)
            }
        };
        let (config, name) = load(&path, context).await?;
        // A kubeconfig that leads to the engine on this machine is as local as none at all.
        let running = DataDir::locate(global.data_dir.as_deref()).ok().and_then(|data| data.running());
        let same = running.is_some_and(|running| config.cluster_url.to_string().trim_end_matches('/') == running.api);
        let remote = (!local && !same).then(|| format!("{name} ({})", config.cluster_url));
        let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client =
            kube::Client::try_from(config).map_err(|source| TargetError::Client { name, source: Box::new(source) })?;
        Ok(Self { client, namespace, remote })
    }

    /// Says on stderr which cluster is about to change, unless it is the local engine.
    pub(crate) fn announce_change(&self) {
        if let Some(name) = &self.remote {
            eprintln!("target: {name}, namespace {}", self.namespace);
        }
    }
}

/// The control plane that a node joins: as for every command, and inside a cluster the cluster's own. The local engine has a node.
pub(crate) async fn control_plane(global: &GlobalArgs) -> Result<kube::Config, TargetError> {
    match choose(global, |name| std::env::var_os(name)) {
        Choice::File { path, context } => Ok(load(&path, context).await?.0),
        Choice::Local => kube::Config::incluster().map_err(|_| TargetError::NoControlPlane),
    }
}

/// The configuration for a file's context, and what to call it.
async fn load(path: &Path, context: Option<String>) -> Result<(kube::Config, String), TargetError> {
    let shown = path.display().to_string();
    let wrong = |source| TargetError::Kubeconfig { path: shown.clone(), source: Box::new(source) };
    let file = Kubeconfig::read_from(path).map_err(wrong)?;
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let name = options.context.clone().or_else(|| file.current_context.clone()).unwrap_or_else(|| shown.clone());
    let config = kube::Config::from_custom_kubeconfig(file, &options).await.map_err(wrong)?;
    Ok((config, name))
}

/// `--kubeconfig`/`--context`, else `AGENT_SANDBOX_TARGET` (`local`, or FILE[#CONTEXT]), else `KUBECONFIG`, else the local engine.
fn choose(global: &GlobalArgs, variable: impl Fn(&str) -> Option<OsString>) -> Choice {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let named = variable("KUBECONFIG");
    if global.kubeconfig.is_some() || global.context.is_some() {
        let home = || variable("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
        let path = global
            .kubeconfig
            .as_ref()
            .map(PathBuf::from)
            .or_else(|| named.map(PathBuf::from))
            .or_else(home)
            .unwrap_or_default();
        return Choice::File { path, context: global.context.clone() };
    }
    if let Some(target) = variable("AGENT_SANDBOX_TARGET") {
        let target = target.to_string_lossy().into_owned();
        return match target.split_once('#') {
            _ if target == "local" => Choice::Local,
            Some((path, context)) => Choice::File { path: path.into(), context: Some(context.to_owned()) },
            None => Choice::File { path: target.into(), context: None },
        };
    }
    match named {
        Some(path) => Choice::File { path: path.into(), context: None },
        None => Choice::Local,
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

    fn file(path: &str, context: Option<&str>) -> Choice {
        Choice::File { path: path.into(), context: context.map(str::to_owned) }
    }

    #[test]
    fn flags_win_over_the_environment() {
        let environment = with(&[("KUBECONFIG", "/env"), ("AGENT_SANDBOX_TARGET", "local"), ("HOME", "/home/a")]);
        assert_eq!(choose(&global(Some("/flag"), None), &environment), file("/flag", None));
        assert_eq!(choose(&global(None, Some("prod")), &environment), file("/env", Some("prod")));
    }

    #[test]
    fn the_target_variable_wins_over_kubeconfig() {
        assert_eq!(
            choose(&global(None, None), with(&[("KUBECONFIG", "/env"), ("AGENT_SANDBOX_TARGET", "local")])),
            Choice::Local
        );
        assert_eq!(choose(&global(None, None), with(&[("AGENT_SANDBOX_TARGET", "/f#c")])), file("/f", Some("c")));
        assert_eq!(choose(&global(None, None), with(&[("KUBECONFIG", "/env")])), file("/env", None));
    }

    #[test]
    fn the_users_own_kubeconfig_is_never_taken_by_itself() {
        assert_eq!(choose(&global(None, None), with(&[("HOME", "/home/a")])), Choice::Local);
        assert_eq!(
            choose(&global(None, Some("prod")), with(&[("HOME", "/home/a")])),
            file("/home/a/.kube/config", Some("prod"))
        );
    }
}
