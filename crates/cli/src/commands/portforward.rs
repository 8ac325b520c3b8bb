//! `port-forward`: forwards local ports to a sandbox, until Ctrl-C.

use super::objects::find_sandbox;
use crate::{
    args::{Forward, GlobalArgs, PortForwardArgs},
    cluster::ClusterClient,
};
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_client as sdk;
use agent_sandbox_engine::DataDir;
use anyhow::{Context as _, Result};
use kube::{Api, ResourceExt as _};
use std::{
    fs::{File, TryLockError},
    io::Write as _,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Interval between checks whether the local engine still runs.
const ENGINE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn forward(global: &GlobalArgs, cluster: &ClusterClient, args: PortForwardArgs) -> Result<()> {
    let found = find_sandbox(cluster, &args.name).await?;
    sdk::awake_pod(&cluster.client, &found.sandbox).await?;
    let name = found.sandbox.name_any();
    let mut listeners = JoinSet::new();
    for Forward { local, remote } in args.ports {
        let listener = TcpListener::bind(local).await;
        let listener = listener.with_context(|| format!("cannot listen on {local}"))?;
        report(&format!("forwarding {} -> {remote}", listener.local_addr()?));
        let (client, namespace, name) = (cluster.client.clone(), cluster.namespace.clone(), name.clone());
        listeners.spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (client, namespace, name) = (client.clone(), namespace.clone(), name.clone());
                tokio::spawn(async move {
                    if let Err(error) = connect(near, &client, &namespace, &name, remote).await {
                        report(&format!("error: {error:#}"));
                    }
                });
            }
        });
    }
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.context("cannot wait for Ctrl-C"),
        () = gone(global, cluster, &found.sandbox), if args.until_gone => Ok(()),
    }
}

/// Carries one connection. The Pod is looked up each time: a resumed sandbox has another one.
async fn connect(mut near: TcpStream, client: &kube::Client, namespace: &str, name: &str, remote: u16) -> Result<()> {
    let sandbox = sdk::find(client, namespace, name).await?.sandbox;
    let pod = sdk::awake_pod(client, &sandbox).await?;
    let mut far = sdk::dial(client, &pod, remote).await?;
    match tokio::io::copy_bidirectional(&mut near, &mut far).await {
        // The API's own message, for example that nothing listens on the port.
        Err(error) if error.kind() == std::io::ErrorKind::Other => Err(error).context(format!("port {remote}")),
        // A connection that one end closed needs no report.
        _ => Ok(()),
    }
}

/// Completes when the sandbox is deleted or the local engine that it belongs to has ended.
async fn gone(global: &GlobalArgs, cluster: &ClusterClient, sandbox: &Sandbox) {
    let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let name = sandbox.name_any();
    let deleted = sdk::gone(api, &name, Some(sandbox.uid()), Duration::MAX);
    let ended = async {
        let data = DataDir::locate(global.data_dir.as_deref()).ok().filter(|_| cluster.is_local());
        let Some(data) = data else { return std::future::pending().await };
        while !has_ended(&data) {
            tokio::time::sleep(ENGINE_CHECK_INTERVAL).await;
        }
    };
    tokio::select! {
        _ = deleted => {}
        () = ended => {}
    }
}

/// Whether no engine runs on the data folder, and none is being started or replaced, which locks the folder.
fn has_ended(data: &DataDir) -> bool {
    let is_locked = || {
        let folder = File::open(data.path());
        folder.is_ok_and(|folder| matches!(folder.try_lock_shared(), Err(TryLockError::WouldBlock)))
    };
    data.running().is_none() && !is_locked()
}

/// Prints to standard error, which has no reader when this process runs in the background.
fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_is_being_replaced_has_not_ended() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::locate(Some(folder.path())).unwrap();
        assert!(has_ended(&data));
        let lock = data.lock().unwrap();
        assert!(!has_ended(&data));
        drop(lock);
        data.publish_state("https://127.0.0.1:1".into(), "http://127.0.0.1:2".into()).unwrap();
        assert!(!has_ended(&data), "it runs");
    }
}
