//! `create`, `claim`, `list`, `get`, `suspend`, `resume`, `delete`.

pub(crate) mod show;

use super::{
    names::with_suggestion,
    pod_warnings::{start_failure, with_latest_warning},
};
use crate::{
    args::{ClaimArgs, CreateArgs, DeleteArgs, GetArgs, ListArgs, NamesArgs},
    cluster::ClusterClient,
    output,
};
use agent_sandbox_api::{
    keys,
    template::PodTemplate,
    v1beta1::{Sandbox, SandboxClaim},
};
use agent_sandbox_client::{self as sdk, ClaimOptions, ClientError, ContainerOptions, Deleted};
use anyhow::{Result, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use std::{sync::Arc, time::Duration};

pub(crate) async fn create(cluster: &ClusterClient, args: CreateArgs) -> Result<()> {
    let container = ContainerOptions {
        image: args.image,
        command: args.command,
        env: args.env,
        memory: args.memory,
        cpus: args.cpus,
        runtime_class: args.isolation,
        ..ContainerOptions::default()
    };
    cluster.announce_change();
    let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let mut wanted = sdk::sandbox(&args.name, &container, args.expires_in.map(from_now));
    request_sandboxd(&mut wanted.spec.pod_template);
    let mut sandbox = match api.create(&PostParams::default(), &wanted).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            return Err(ClientError::AlreadyExists { namespace: cluster.namespace.clone(), name: args.name }.into());
        }
        other => other?,
    };
    if !args.wait.wait.is_zero() {
        sandbox = wait_until_ready(cluster, &sandbox, args.wait.wait, args.keep).await?;
    }
    let next = format!(
        "sandbox {0} is {1}\n  run in it:  agent-sandbox exec {0} -- COMMAND\n",
        args.name,
        show::state(&sandbox)
    );
    output::emit(args.output.output, &sandbox, || format!("sandbox/{}\n", args.name), || next)
}

/// Waits for a new Sandbox. On the local engine a failure that no waiting can mend ends the wait at once, and the
/// Sandbox is deleted unless it is to be kept. Other clusters repeat failed starts, for example when a registry is busy.
async fn wait_until_ready(cluster: &ClusterClient, sandbox: &Sandbox, limit: Duration, keep: bool) -> Result<Sandbox> {
    let (client, namespace, name) = (&cluster.client, cluster.namespace.as_str(), sandbox.name_any());
    let uid = sandbox.uid();
    let failure = async {
        match cluster.is_local() {
            true => start_failure(client, namespace, &name, Some(uid)).await,
            false => std::future::pending().await,
        }
    };
    let reason = tokio::select! {
        ready = sdk::sandbox_ready(client, namespace, &name, limit) => match ready {
            Ok(sandbox) => return Ok(sandbox),
            Err(error) => return Err(with_latest_warning(client, namespace, &name, error).await),
        },
        reason = failure => reason,
    };
    if keep {
        bail!("sandbox {name} cannot start: {reason}\n  it is kept: agent-sandbox get {name}");
    }
    sdk::delete(client, namespace, &name).await?;
    bail!("sandbox {name} cannot start, and was deleted again: {reason}")
}

pub(crate) async fn claim(cluster: &ClusterClient, args: ClaimArgs) -> Result<()> {
    cluster.announce_change();
    let api: Api<SandboxClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let options =
        ClaimOptions { name: args.name, pool: args.pool, env: args.env, expires_at: args.expires_in.map(from_now) };
    let mut claim = match api.create(&PostParams::default(), &sdk::claim(&options)).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let name = options.name.unwrap_or_default();
            return Err(ClientError::AlreadyExists { namespace: cluster.namespace.clone(), name }.into());
        }
        other => other?,
    };
    let name = claim.name_any();
    if !args.wait.wait.is_zero() {
        claim = sdk::claim_ready(&cluster.client, &cluster.namespace, &name, args.wait.wait).await?;
    }
    let bound = claim.bound_sandbox().unwrap_or("none yet").to_owned();
    let next = format!("claim {name} has sandbox {bound}\n  run in it:  agent-sandbox exec {name} -- COMMAND\n");
    output::emit(args.output.output, &claim, || format!("sandboxclaim/{name}\n"), || next)
}

pub(crate) async fn list(cluster: &ClusterClient, args: ListArgs) -> Result<()> {
    let api: Api<Sandbox> = match args.all_namespaces {
        true => Api::all(cluster.client.clone()),
        false => Api::namespaced(cluster.client.clone(), &cluster.namespace),
    };
    let mut params = ListParams::default();
    if let Some(selector) = &args.selector {
        params = params.labels(selector);
    }
    let sandboxes = api.list(&params).await?;
    output::emit(
        args.output.output,
        &sandboxes,
        || sandboxes.iter().map(|sandbox| format!("sandbox/{}\n", sandbox.name_any())).collect(),
        || show::table(&sandboxes.items, args.all_namespaces, jiff::Timestamp::now()),
    )
}

pub(crate) async fn get(cluster: &ClusterClient, args: GetArgs) -> Result<()> {
    let found = find_sandbox(cluster, &args.name).await?;
    let sandbox = found.sandbox;
    output::emit(
        args.output.output,
        &sandbox,
        || format!("sandbox/{}\n", sandbox.name_any()),
        || show::details(&sandbox, found.claim.as_ref(), jiff::Timestamp::now()),
    )
}

pub(crate) async fn suspend(cluster: &ClusterClient, args: NamesArgs) -> Result<()> {
    cluster.announce_change();
    for name in &args.names {
        let sandbox = match sdk::suspend(&cluster.client, &cluster.namespace, name).await {
            Ok(sandbox) => sandbox.name_any(),
            Err(error) => return Err(with_suggestion(&cluster.client, &cluster.namespace, error).await),
        };
        if !args.wait.wait.is_zero() {
            sdk::sandbox_suspended(&cluster.client, &cluster.namespace, &sandbox, args.wait.wait).await?;
        }
        output::print(&format!("sandbox {sandbox} suspended; its files are kept\n"))?;
    }
    Ok(())
}

pub(crate) async fn resume(cluster: &ClusterClient, args: NamesArgs) -> Result<()> {
    cluster.announce_change();
    for name in &args.names {
        let sandbox = match sdk::resume(&cluster.client, &cluster.namespace, name).await {
            Ok(sandbox) => sandbox.name_any(),
            Err(error) => return Err(with_suggestion(&cluster.client, &cluster.namespace, error).await),
        };
        if !args.wait.wait.is_zero()
            && let Err(error) = sdk::sandbox_ready(&cluster.client, &cluster.namespace, &sandbox, args.wait.wait).await
        {
            return Err(with_latest_warning(&cluster.client, &cluster.namespace, &sandbox, error).await);
        }
        output::print(&format!("sandbox {sandbox} resumed\n"))?;
    }
    Ok(())
}

pub(crate) async fn delete(cluster: &ClusterClient, args: DeleteArgs) -> Result<()> {
    cluster.announce_change();
    let names = if args.all { deletable_names(cluster).await? } else { args.names };
    if names.is_empty() {
        output::print("nothing to delete\n")?;
    }
    for name in &names {
        let deleted = match sdk::delete(&cluster.client, &cluster.namespace, name).await {
            Ok(deleted) => deleted,
            Err(error) => return Err(with_suggestion(&cluster.client, &cluster.namespace, error).await),
        };
        let limit = args.wait.wait;
        let kind = match &deleted {
            Deleted::Claim { uid } => {
                let api: Api<SandboxClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
                wait_deleted(api, name, uid.as_deref(), limit).await?;
                "claim"
            }
            Deleted::Sandbox { uid } => {
                let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
                wait_deleted(api, name, uid.as_deref(), limit).await?;
                "sandbox"
            }
        };
        output::print(&format!("{kind} {name} deleted\n"))?;
    }
    Ok(())
}

async fn wait_deleted<K>(api: Api<K>, name: &str, uid: Option<&str>, limit: Duration) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    if limit.is_zero() {
        return Ok(());
    }
    Ok(sdk::gone(api, name, uid, limit).await?)
}

/// Sets the annotation that makes our node put sandboxd into the sandbox: most images do not contain it.
pub(crate) fn request_sandboxd(template: &mut PodTemplate) {
    let annotations = Arc::make_mut(template.metadata.get_or_insert_default()).annotations.get_or_insert_default();
    annotations.insert(keys::annotations::INJECT_SANDBOXD.to_owned(), "true".to_owned());
}

/// Names of all claims, and of Sandboxes without a controlling owner.
async fn deletable_names(cluster: &ClusterClient) -> Result<Vec<String>> {
    let everything = ListParams::default();
    let claims: Api<SandboxClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let sandboxes: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let mut names: Vec<String> = claims.list(&everything).await?.iter().map(|claim| claim.name_any()).collect();
    let unowned = |sandbox: &&Sandbox| !sandbox.owner_references().iter().any(|owner| owner.controller == Some(true));
    names.extend(sandboxes.list(&everything).await?.iter().filter(unowned).map(|sandbox| sandbox.name_any()));
    Ok(names)
}

/// Finds a Sandbox by its own or its claim's name. The error suggests a similar name.
pub(crate) async fn find_sandbox(cluster: &ClusterClient, name: &str) -> Result<sdk::Found> {
    match sdk::find(&cluster.client, &cluster.namespace, name).await {
        Ok(found) => Ok(found),
        Err(error) => Err(with_suggestion(&cluster.client, &cluster.namespace, error).await),
    }
}

fn from_now(duration: Duration) -> Time {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX / 2);
    let now = jiff::Timestamp::now();
    Time(now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(jiff::Timestamp::MAX))
}
