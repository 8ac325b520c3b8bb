//! `apply -f`: manifests, short forms included, by server-side apply.

mod short;

use crate::{
    args::{ApplyArgs, GlobalArgs},
    cluster::ClusterClient,
    output,
};
use anyhow::{Context as _, Result, bail};
use kube::{
    Api, Client, Discovery, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
    core::{GroupVersionKind, TypeMeta},
    discovery::{ApiCapabilities, ApiResource, Scope},
};
use serde_json::Value;
use std::{io::Read, path::Path};

/// Name of this program in managedFields.
const MANAGER: &str = "agent-sandbox";

pub(crate) async fn apply(global: &GlobalArgs, args: ApplyArgs) -> Result<()> {
    // Mistakes in the files are reported before a cluster is chosen.
    let mut documents = Vec::new();
    for file in &args.filename {
        let text = read(file)?;
        let shown = file.display();
        documents.extend(parse(&text).with_context(|| format!("{shown} is not valid YAML"))?);
    }
    if documents.is_empty() {
        bail!("the files hold no manifest to apply");
    }
    let mut wanted = Vec::new();
    for document in documents {
        let expanded = short::expand(document)?;
        if expanded.was_short {
            output::print(&format!("# understood as:\n{}", serde_saphyr::to_string(&expanded.object)?))?;
        }
        wanted.push(expanded.object);
    }
    let cluster = ClusterClient::open_used(global).await?;
    if !args.dry_run {
        cluster.announce_change();
    }
    let discovery = Discovery::new(cluster.client.clone()).run().await.context("cannot ask the API what it serves")?;
    for object in wanted {
        apply_one(&cluster, &discovery, object, args.dry_run).await?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

async fn apply_one(cluster: &ClusterClient, discovery: &Discovery, object: Value, dry_run: bool) -> Result<()> {
    let types: TypeMeta = serde_json::from_value(object.clone()).context("a manifest needs apiVersion and kind")?;
    let kind =
        GroupVersionKind::try_from(&types).with_context(|| format!("`{}` is not an apiVersion", types.api_version))?;
    let Some((resource, capabilities)) = discovery.resolve_gvk(&kind) else {
        bail!("the API has no kind `{}` in `{}`", types.kind, types.api_version);
    };
    let object: DynamicObject = serde_json::from_value(object)?;
    let name = object.name_any();
    if name.is_empty() {
        bail!("a {} has no metadata.name", types.kind);
    }
    let api =
        api_for(&cluster.client, &resource, &capabilities, object.namespace().as_deref().unwrap_or(&cluster.namespace));
    let mut params = PatchParams::apply(MANAGER);
    params.dry_run = dry_run;
    let before = api.get_opt(&name).await?.and_then(|found| found.resource_version());
    let after = api.patch(&name, &params, &Patch::Apply(&object)).await;
    let after = after.with_context(|| format!("cannot apply {} `{name}`", types.kind))?;
    let word = match before {
        _ if dry_run => "would be applied",
        None => "created",
        before if before == after.resource_version() => "unchanged",
        Some(_) => "configured",
    };
    output::print(&format!("{}/{name} {word}\n", types.kind.to_lowercase()))
}

fn api_for(
    client: &Client,
    resource: &ApiResource,
    capabilities: &ApiCapabilities,
    namespace: &str,
) -> Api<DynamicObject> {
    match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), resource),
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, resource),
    }
}
