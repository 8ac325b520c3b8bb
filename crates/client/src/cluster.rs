//! Selection of the cluster: the one that the caller or the environment specifies, or the local engine.

use crate::{ClientError, LocalEngine};
use kube::{
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::path::{Path, PathBuf};
use thiserror::Error;
use tower::{BoxError, util::MapErrLayer};

/// Variable that names the cluster: `local`, or FILE[#CONTEXT].
const TARGET: &str = "AGENT_SANDBOX_TARGET";
/// What chose `~/.kube/config`.
const DEFAULT: &str = "default";
/// What messages call the local engine.
const LOCAL: &str = "the engine on this machine";

/// How a cluster is selected. The default uses the environment.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// A kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// Contents of a kubeconfig, instead of a file.
    pub kubeconfig_text: Option<String>,
    /// A context of the kubeconfig instead of its current one.
    pub context: Option<String>,
    /// Data folder of the local engine, instead of the user's default. If set, only that engine is used.
    pub data_dir: Option<PathBuf>,
    /// Use the local engine, regardless of the environment.
    pub local: bool,
    /// Start the local engine if it is selected, or was used before, or nothing else is there, and it does not run.
    pub start_local: bool,
    /// Prefer `~/.kube/config` to a local engine, as kubectl users expect.
    pub home_first: bool,
}

/// A request that got no answer.
#[derive(Debug, Error)]
#[error("no answer from the Kubernetes API at {server}")]
struct Unanswered {
    /// Its address, and what chose it.
    server: String,
    #[source]
    source: BoxError,
}

/// A client whose errors about requests without an answer name the server, and what chose it.
pub fn connect(config: kube::Config, chosen_by: &str) -> Result<kube::Client, kube::Error> {
    let server = format!("{} ({chosen_by})", config.cluster_url);
    let explain = move |source: BoxError| match source.is::<kube::Error>() {
        // The request could not be made, for example without credentials.
        true => source,
        false => Box::new(Unanswered { server: server.clone(), source }),
    };
    Ok(ClientBuilder::try_from(config)?.with_layer(&MapErrLayer::new(explain)).build())
}

/// A selected cluster.
#[derive(Clone)]
pub struct Cluster {
    pub client: kube::Client,
    /// The namespace of the kubeconfig's context.
    pub namespace: String,
    /// Set when the cluster is the engine on this machine.
    pub local: Option<LocalEngine>,
}

impl Cluster {
    /// A cluster for which the caller already has a client.
    pub fn of(client: kube::Client) -> Self {
        let namespace = client.default_namespace().to_owned();
        Self { client, namespace, local: None }
    }

    /// Selects a cluster and creates a client for it. Sends no request yet.
    pub async fn find(options: &ClusterOptions) -> Result<Self, ClientError> {
        if let Some(text) = &options.kubeconfig_text {
            let parsed = Kubeconfig::from_yaml(text).map_err(|error| configuration(&error))?;
            return from_kubeconfig(parsed, options.context.clone(), "chosen by the caller's kubeconfig", None).await;
        }
        if let Some(path) = &options.kubeconfig {
            return from_file(path, options.context.clone(), "the caller", None).await;
        }
        if options.local || options.data_dir.is_some() {
            return local(options).await;
        }
        from_environment(options).await
    }
}

async fn from_environment(options: &ClusterOptions) -> Result<Cluster, ClientError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(target) = variable(TARGET) {
        return match target.split_once('#') {
            _ if target == "local" => local(options).await,
            Some((path, context)) => from_file(Path::new(path), Some(context.to_owned()), TARGET, None).await,
            None => from_file(Path::new(&target), options.context.clone(), TARGET, None).await,
        };
    }
    if variable("KUBERNETES_SERVICE_HOST").is_some() {
        let config = kube::Config::incluster().map_err(|error| configuration(&error))?;
        return from_config(config, "the cluster that this process runs in", None);
    }
    if let Some(files) = variable("KUBECONFIG") {
        let files: Vec<PathBuf> = std::env::split_paths(&files).filter(|path| !path.as_os_str().is_empty()).collect();
        if LocalEngine::is_named_by(None, &files, options.context.as_deref()) {
            return named_engine(options).await;
        }
        let merged = Kubeconfig::from_env().map_err(|error| configuration(&error))?;
        if let Some(merged) = merged {
            return from_kubeconfig(merged, options.context.clone(), "chosen by KUBECONFIG", None).await;
        }
    }
    let home = variable("HOME").map(|home| PathBuf::from(home).join(".kube/config")).filter(|path| path.exists());
    let was_used = || LocalEngine::find(None).is_some() || LocalEngine::was_used(None);
    match (unnamed(options, home.is_some(), was_used), home) {
        (Unnamed::Home, Some(home)) => from_file(&home, options.context.clone(), DEFAULT, None).await,
        (Unnamed::Engine, _) => local(options).await,
        _ => {
            let tried = "KUBECONFIG is not set, ~/.kube/config is not there, no engine runs on this machine";
            Err(ClientError::NoCluster { tried: tried.to_owned() })
        }
    }
}

/// What is used where nothing names a cluster.
#[derive(Debug, PartialEq, Eq)]
enum Unnamed {
    /// `~/.kube/config`
    Home,
    /// The local engine, also while it does not run: the same program must not change to another cluster when the engine
    /// has ended.
    Engine,
    Nothing,
}

/// Chooses where nothing names a cluster. `home` says whether there is a `~/.kube/config`, `was_used` whether an engine
/// runs or has run on this machine.
fn unnamed(options: &ClusterOptions, home: bool, was_used: impl FnOnce() -> bool) -> Unnamed {
    match () {
        () if home && options.home_first => Unnamed::Home,
        () if was_used() => Unnamed::Engine,
        () if home => Unnamed::Home,
        () if options.start_local => Unnamed::Engine,
        () => Unnamed::Nothing,
    }
}

async fn local(options: &ClusterOptions) -> Result<Cluster, ClientError> {
    of_engine(find_or_start(options).await?).await
}

/// The local engine that runs, or that is started if the options say so.
async fn find_or_start(options: &ClusterOptions) -> Result<LocalEngine, ClientError> {
    let folder = options.data_dir.as_deref();
    if options.start_local {
        return LocalEngine::find_or_start(folder).await;
    }
    let none = || ClientError::NoCluster { tried: "no engine runs on this machine".to_owned() };
    LocalEngine::find(folder).ok_or_else(none)
}

/// The local engine that KUBECONFIG names, with the credentials and the namespace from there.
async fn named_engine(options: &ClusterOptions) -> Result<Cluster, ClientError> {
    let engine = find_or_start(options).await?;
    // Read now: the engine may have written another address into it.
    match Kubeconfig::from_env().map_err(|error| configuration(&error))? {
        Some(merged) => from_kubeconfig(merged, options.context.clone(), LOCAL, Some(engine)).await,
        None => of_engine(engine).await,
    }
}

async fn of_engine(engine: LocalEngine) -> Result<Cluster, ClientError> {
    from_file(&engine.kubeconfig(), None, LOCAL, Some(engine)).await
}

async fn from_file(
    path: &Path,
    context: Option<String>,
    named_by: &str,
    local: Option<LocalEngine>,
) -> Result<Cluster, ClientError> {
    let read = Kubeconfig::read_from(path);
    let parsed =
        read.map_err(|error| ClientError::Configuration { message: format!("{}: {error}", path.display()) })?;
    let chosen_by = match &local {
        Some(_) => named_by.to_owned(),
        None => format!("chosen by {named_by}: {}", path.display()),
    };
    from_kubeconfig(parsed, context, &chosen_by, local).await
}

async fn from_kubeconfig(
    parsed: Kubeconfig,
    context: Option<String>,
    chosen_by: &str,
    local: Option<LocalEngine>,
) -> Result<Cluster, ClientError> {
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let config = kube::Config::from_custom_kubeconfig(parsed, &options).await;
    from_config(config.map_err(|error| configuration(&error))?, chosen_by, local)
}

fn from_config(config: kube::Config, chosen_by: &str, local: Option<LocalEngine>) -> Result<Cluster, ClientError> {
    let namespace = config.default_namespace.clone();
    let client = connect(config, chosen_by).map_err(|error| configuration(&error))?;
    Ok(Cluster { client, namespace, local })
}

fn configuration(error: &dyn std::error::Error) -> ClientError {
    let mut message = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        message.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    ClientError::Configuration { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_was_used_wins_over_the_default_kubeconfig() {
        let starting = ClusterOptions { start_local: true, ..ClusterOptions::default() };
        let choose = |options: &ClusterOptions, home, was_used: bool| unnamed(options, home, || was_used);
        for options in [&starting, &ClusterOptions::default()] {
            assert_eq!(choose(options, true, true), Unnamed::Engine);
            assert_eq!(choose(options, false, true), Unnamed::Engine);
            assert_eq!(choose(options, true, false), Unnamed::Home, "a machine without an engine");
        }
        assert_eq!(choose(&starting, false, false), Unnamed::Engine);
        assert_eq!(choose(&ClusterOptions::default(), false, false), Unnamed::Nothing);
        let home_first = ClusterOptions { home_first: true, ..starting };
        assert_eq!(choose(&home_first, true, true), Unnamed::Home);
        assert_eq!(choose(&home_first, false, true), Unnamed::Engine);
    }
}
