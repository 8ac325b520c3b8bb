//! `list`: sandboxes under the names that other commands take, and claims that have no sandbox yet.

use super::{ports::ports_of, show};
use crate::{
    args::{OutputFormat, SandboxListArgs},
    cluster::ClusterClient,
    commands::streams::until_output_closes,
    output,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use anyhow::Result;
use futures::StreamExt as _;
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ListParams, ObjectList},
    core::NamespaceResourceScope,
    runtime::watcher,
};
use std::{collections::HashSet, io::IsTerminal as _, process::ExitCode, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// Time in which changes are collected before the list is shown again.
const REFRESH_DELAY: Duration = Duration::from_millis(200);
/// Interval in which the ports of sandboxes are looked at again: no object changes when a program begins to listen.
const PORTS_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) async fn list(cluster: &ClusterClient, args: SandboxListArgs) -> Result<ExitCode> {
    if !args.watch {
        output::print(&render(cluster, &args).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Open all the time: a signal that no one waits for would be lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let watching = async {
        tokio::select! {
            _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
            outcome = watch(cluster, &args) => outcome,
        }
    };
    until_output_closes(watching).await
}

/// Prints the list whenever it has changed.
async fn watch(cluster: &ClusterClient, args: &SandboxListArgs) -> Result<ExitCode> {
    let config = || match &args.selector {
        Some(selector) => watcher::Config::default().labels(selector),
        None => watcher::Config::default(),
    };
    let sandboxes = watcher(api::<Sandbox>(cluster, args.all_namespaces), config()).map(drop);
    let claims = watcher(api::<SandboxClaim>(cluster, args.all_namespaces), config()).map(drop);
    let mut changes = std::pin::pin!(futures::stream::select(sandboxes, claims));
    let clear = args.output.output == OutputFormat::Table && std::io::stdout().is_terminal();
    let mut shown = String::new();
    loop {
        let text = render(cluster, args).await?;
        if text != shown {
            output::print(&format!("{}{text}", if clear { output::CLEAR_SCREEN } else { "" }))?;
            shown = text;
        }
        let change = match cluster.is_local() {
            true => tokio::time::timeout(PORTS_INTERVAL, changes.next()).await.unwrap_or(Some(())),
            false => changes.next().await,
        };
        if change.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(REFRESH_DELAY).await;
    }
}

async fn render(cluster: &ClusterClient, args: &SandboxListArgs) -> Result<String> {
    let params = ListParams { label_selector: args.selector.clone(), ..ListParams::default() };
    let mut sandboxes = api::<Sandbox>(cluster, args.all_namespaces).list(&params).await?;
    if !args.all {
        sandboxes.items.retain(|sandbox| !is_pool_member(sandbox));
    }
    let claims = unserved(api(cluster, args.all_namespaces).list(&params).await, &sandboxes.items)?;
    let names = || {
        let sandboxes = sandboxes.iter().map(|sandbox| format!("sandbox/{}\n", sandbox.name_any()));
        sandboxes.chain(claims.iter().map(|claim| format!("sandboxclaim/{}\n", claim.name_any()))).collect()
    };
    // On a cluster each sandbox would need a port-forward of its own.
    let asked = cluster.is_local() && args.output.output == OutputFormat::Table;
    let ports = if asked { Some(ports_of(cluster, &sandboxes.items).await) } else { None };
    let table = || show::table(&sandboxes.items, &claims, args.all_namespaces, ports.as_ref(), jiff::Timestamp::now());
    let mut everything = serde_json::to_value(&sandboxes)?;
    if let Some(items) = everything["items"].as_array_mut() {
        for claim in &claims {
            let mut item = serde_json::to_value(claim)?;
            item["apiVersion"] = SandboxClaim::api_version(&()).into();
            item["kind"] = SandboxClaim::kind(&()).into();
            items.push(item);
        }
    }
    output::render(args.output.output, &everything, names, table)
}

fn api<K>(cluster: &ClusterClient, all_namespaces: bool) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match all_namespaces {
        true => Api::all(cluster.client.clone()),
        false => Api::namespaced(cluster.client.clone(), &cluster.namespace),
    }
}

/// Whether a Sandbox waits in a pool.
pub(crate) fn is_pool_member(sandbox: &impl kube::Resource) -> bool {
    let owners = sandbox.owner_references();
    owners.iter().any(|owner| owner.controller == Some(true) && owner.kind == "SandboxWarmPool")
}

/// Claims that own none of the Sandboxes. A cluster without the extensions API group has no claims.
fn unserved(claims: Result<ObjectList<SandboxClaim>, kube::Error>, sandboxes: &[Sandbox]) -> Result<Vec<SandboxClaim>> {
    let claims = match claims {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
        other => other?,
    };
    let served: HashSet<(&str, &str)> = sandboxes
        .iter()
        .flat_map(|sandbox| sandbox.owner_references().iter().map(|owner| (sandbox.namespace(), owner.name.as_str())))
        .collect();
    let is_served = |claim: &SandboxClaim| served.contains(&(claim.namespace(), claim.name()));
    Ok(claims.items.iter().filter(|claim| !is_served(claim)).cloned().collect())
}
