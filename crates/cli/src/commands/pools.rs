//! `pool`: warm pools.

use crate::{
    args::{ListArgs, PoolArgs, PoolCommand, nearest},
    cluster::ClusterClient,
    output::{self, Table, age},
};
use agent_sandbox_api::v1beta1::{SandboxTemplate, SandboxWarmPool};
use agent_sandbox_client as sdk;
use anyhow::{Result, bail};
use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

pub(crate) async fn pool(cluster: &ClusterClient, args: PoolArgs) -> Result<()> {
    let api: Api<SandboxWarmPool> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    if !matches!(args.command, PoolCommand::List(_)) {
        cluster.announce_change();
    }
    match args.command {
        PoolCommand::Create { name, template, replicas } => {
            check_template(cluster, &template).await?;
            api.create(&PostParams::default(), &sdk::pool(&name, &template, replicas)).await?;
            output::print(&format!("pool {name} keeps {replicas} sandboxes of template {template} warm\n"))
        }
        PoolCommand::Scale { name, replicas } => {
            let patch = json!({"spec": {"replicas": replicas}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            output::print(&format!("pool {name} keeps {replicas} sandboxes warm\n"))
        }
        PoolCommand::Delete { name } => {
            api.delete(&name, &DeleteParams::background()).await?;
            output::print(&format!("pool {name} deleted\n"))
        }
        PoolCommand::List(args) => list(cluster, args).await,
    }
}

/// Returns an error if there is no template of this name. A user who may not read templates is believed.
async fn check_template(cluster: &ClusterClient, name: &str) -> Result<()> {
    let api: Api<SandboxTemplate> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    match api.get_metadata_opt(name).await {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => {}
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let known: Vec<String> =
        api.list(&ListParams::default()).await.into_iter().flatten().map(|known| known.name_any()).collect();
    let namespace = &cluster.namespace;
    match nearest(name, known.iter().map(String::as_str)).first() {
        Some(near) => bail!("there is no template `{name}` in namespace `{namespace}`\n  did you mean `{near}`?"),
        None => bail!(
            "there is no template `{name}` in namespace `{namespace}`; create it first: agent-sandbox template create {name}"
        ),
    }
}

async fn list(cluster: &ClusterClient, args: ListArgs) -> Result<()> {
    let api: Api<SandboxWarmPool> = match args.all_namespaces {
        true => Api::all(cluster.client.clone()),
        false => Api::namespaced(cluster.client.clone(), &cluster.namespace),
    };
    let pools = api.list(&ListParams { label_selector: args.selector, ..ListParams::default() }).await?;
    output::emit(
        args.output.output,
        &pools,
        || pools.iter().map(|pool| format!("sandboxwarmpool/{}\n", pool.name_any())).collect(),
        || table(&pools.items, Timestamp::now()),
    )
}

fn table(pools: &[SandboxWarmPool], now: Timestamp) -> String {
    if pools.is_empty() {
        return "no pools; make one with `agent-sandbox pool create NAME --template TEMPLATE`\n".to_owned();
    }
    let mut table = Table::new(&["NAMESPACE", "NAME", "TEMPLATE", "READY", "WANTED", "AGE"]);
    for pool in pools {
        let ready = pool.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        let created = pool.metadata.creation_timestamp.as_ref();
        table.row(vec![
            pool.namespace().to_owned(),
            pool.name_any(),
            pool.spec.sandbox_template_ref.name.clone(),
            ready.to_string(),
            pool.replicas().to_string(),
            created.map(|created| age(now.as_second() - created.0.as_second())).unwrap_or_default(),
        ]);
    }
    table.render()
}
