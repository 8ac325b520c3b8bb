//! `create`, `claim`, `list`, `get`, `suspend`, `resume`, `keep-alive`, `delete`.

mod here;
mod list;
mod ports;
pub(crate) mod show;
pub(super) mod waiting;

pub(crate) use list::{is_pool_member, list};

use super::{names::with_suggestion, network, publish};
use crate::{
    args::{
        ClaimArgs, CreateArgs, DeleteArgs, EgressArgs, GetArgs, GlobalArgs, KeepAliveArgs, NamesArgs, Network,
        OutputFormat, SuspendArgs,
    },
    cluster::ClusterClient,
    output,
};
use agent_sandbox_api::{
    keys, names,
    template::{PodTemplate, ShutdownPolicy},
    v1beta1::{Sandbox, SandboxClaim},
};
use agent_sandbox_client::{self as sdk, ClaimRequest, ClientError, ContainerOptions, Deleted, Source};
use anyhow::Result;
use k8s_openapi::{
    NamespaceResourceScope, api::networking::v1::NetworkPolicy, apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{fmt::Debug, sync::Arc, time::Duration};

pub(crate) async fn create(global: &GlobalArgs, cluster: &ClusterClient, args: CreateArgs) -> Result<()> {
    let (name, publish) = (args.name.clone(), args.publish.clone());
    if let Some(template) = args.template {
        let claim = ClaimArgs {
            source: template,
            name: Some(args.name),
            env: args.env,
            expires_in: args.expires_in,
            allow: args.egress.allow,
            sleep: args.sleep,
            wait: args.wait,
            keep: args.keep,
            output: args.output,
        };
        claim_from(cluster, claim, Source::Template).await?;
    } else {
        create_sandbox(global, cluster, args).await?;
    }
    publish::start(global, &name, &publish).await
}

async fn create_sandbox(global: &GlobalArgs, cluster: &ClusterClient, args: CreateArgs) -> Result<()> {
    let (network, wait, keep, output) = (args.network, args.wait.wait, args.keep, args.output.output);
    let (name, runs_once) = (args.name.clone(), args.remove);
    network::check_engine(global, cluster, network).await?;
    let wanted = match &args.snapshot {
        Some(snapshot) => {
            let snapshot = sdk::find_snapshot(&cluster.client, &cluster.namespace, snapshot).await?;
            let mut wanted = sdk::sandbox_from(&snapshot, &args.name)?;
            wanted.metadata.annotations.get_or_insert_default().extend(args.sleep.annotations());
            wanted.metadata.annotations.get_or_insert_default().extend(args.egress.annotations());
            if let Some(time) = args.expires_in {
                wanted.spec.shutdown_time = Some(from_now(time));
                wanted.spec.shutdown_policy = Some(ShutdownPolicy::Delete);
            }
            wanted
        }
        None => described_sandbox(global, cluster, args).await?,
    };
    cluster.announce_change();
    let sandbox = match create_and_wait(cluster, wanted, NewSandbox { network, wait, keep }).await {
        Err(error) if runs_once && waiting::is_over(&error) => {
            return output::print(&format!("sandbox {name} has ended and is deleted\n"));
        }
        outcome => outcome?,
    };
    let next =
        format!("sandbox {name} is {}\n  run in it:  agent-sandbox exec {name} -- COMMAND\n", show::state(&sandbox));
    output::emit(output, &sandbox, || format!("sandbox/{name}\n"), || next)
}

/// The Sandbox that the flags describe.
async fn described_sandbox(global: &GlobalArgs, cluster: &ClusterClient, args: CreateArgs) -> Result<Sandbox> {
    let folders = here::folders(global, cluster, &args).await?;
    let mut env = args.env;
    env.extend(folders.env.into_iter().filter(|(name, _)| !env.iter().any(|(set, _)| set == name)).collect::<Vec<_>>());
    let container = ContainerOptions {
        image: args.image,
        command: args.command,
        env,
        memory: args.memory,
        cpus: args.cpus,
        storage: args.storage,
        runtime_class: args.isolation,
        working_dir: args.workdir.or(folders.working_dir),
        runs_once: args.remove,
        host_paths: folders.mounts,
        copies: folders.copies,
    };
    let mut wanted = sdk::sandbox(&args.name, &container, args.expires_in.map(from_now));
    request_sandboxd(&mut wanted.spec.pod_template);
    if args.remove {
        let annotations = wanted.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::annotations::SHUTDOWN_WHEN_FINISHED.to_owned(), "true".to_owned());
        wanted.spec.shutdown_policy = Some(ShutdownPolicy::Delete);
    }
    wanted.metadata.annotations.get_or_insert_default().extend(args.sleep.annotations());
    wanted.metadata.annotations.get_or_insert_default().extend(args.egress.annotations());
    Ok(wanted)
}

/// How a new Sandbox is connected and waited for.
pub(super) struct NewSandbox {
    pub(super) network: Option<Network>,
    pub(super) wait: Duration,
    /// Keep a Sandbox that cannot start.
    pub(super) keep: bool,
}

/// Creates a Sandbox and waits until it is ready.
pub(super) async fn create_and_wait(cluster: &ClusterClient, wanted: Sandbox, new: NewSandbox) -> Result<Sandbox> {
    refuse_taken_name::<SandboxClaim>(cluster, &wanted.name_any()).await?;
    let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let sandbox = match api.create(&PostParams::default(), &wanted).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let (namespace, name) = (cluster.namespace.clone(), wanted.name_any());
            return Err(ClientError::AlreadyExists { namespace, name }.into());
        }
        other => other?,
    };
    if let Some(network) = new.network {
        set_network(cluster, &sandbox, network).await?;
    }
    match new.wait.is_zero() {
        true => Ok(sandbox),
        false => waiting::created(cluster, &sandbox, new.wait, new.keep).await,
    }
}

/// Refuses a name that an object of the other kind has: commands find Sandboxes and claims by the same names, and a claim
/// cannot make a Sandbox of a name that is taken. Users who may not read the other kind are not refused.
async fn refuse_taken_name<K>(cluster: &ClusterClient, name: &str) -> Result<()>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    match api.get_metadata_opt(name).await {
        Ok(Some(_)) => {
            Err(ClientError::AlreadyExists { namespace: cluster.namespace.clone(), name: name.to_owned() }.into())
        }
        _ => Ok(()),
    }
}

/// Creates a NetworkPolicy for the Pod of a new Sandbox, which is deleted with the Sandbox. If that fails, the Sandbox
/// is deleted: it would have another network than the one that was asked for.
async fn set_network(cluster: &ClusterClient, sandbox: &Sandbox, network: Network) -> Result<()> {
    let name = sandbox.name_any();
    let selector = json!({"matchLabels": {keys::labels::SANDBOX_NAME_HASH: names::name_hash(&name)}});
    let mut policy = network::policy(&format!("{name}-network"), selector, network)?;
    policy.metadata.owner_references = Some(vec![sandbox.controller_reference()]);
    let policies: Api<NetworkPolicy> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    if let Err(error) = policies.create(&PostParams::default(), &policy).await {
        let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let deleted = api.delete(&name, &DeleteParams::background()).await;
        let outcome = if deleted.is_ok() { "was deleted again" } else { "has another network" };
        return Err(anyhow::Error::new(error).context(format!("cannot set --network; sandbox {name} {outcome}")));
    }
    Ok(())
}

pub(crate) async fn claim(cluster: &ClusterClient, args: ClaimArgs) -> Result<()> {
    claim_from(cluster, args, Source::Named).await
}

async fn claim_from(cluster: &ClusterClient, args: ClaimArgs, source: fn(String) -> Source) -> Result<()> {
    if let Some(name) = &args.name {
        refuse_taken_name::<Sandbox>(cluster, name).await?;
    }
    cluster.announce_change();
    let request = ClaimRequest {
        name: args.name,
        env: args.env,
        expires_after: args.expires_in,
        annotations: [args.sleep.annotations(), EgressArgs { allow: args.allow }.annotations()]
            .into_iter()
            .flatten()
            .collect(),
        created_by: "cli",
        ..ClaimRequest::new(source(args.source), &cluster.namespace)
    };
    let mut claim = sdk::create_claim(&cluster.client, &request).await?;
    let name = claim.name_any();
    if !args.wait.wait.is_zero() {
        claim = waiting::claimed(cluster, &claim, args.wait.wait, args.keep).await?;
    }
    let bound = claim.bound_sandbox().unwrap_or("none yet").to_owned();
    let next = format!("claim {name} has sandbox {bound}\n  run in it:  agent-sandbox exec {name} -- COMMAND\n");
    output::emit(args.output.output, &claim, || format!("sandboxclaim/{name}\n"), || next)
}

pub(crate) async fn get(cluster: &ClusterClient, args: GetArgs) -> Result<()> {
    let found = find_sandbox(cluster, &args.name).await?;
    let sandbox = found.sandbox;
    let problem = match show::starts(&sandbox) {
        true => sdk::start_problem(&cluster.client, &cluster.namespace, sandbox.uid()).await,
        false => None,
    };
    let ports = match args.output.output {
        OutputFormat::Table => ports::ports_of(cluster, std::slice::from_ref(&sandbox)).await.text(&sandbox),
        _ => None,
    };
    output::emit(
        args.output.output,
        &sandbox,
        || format!("sandbox/{}\n", sandbox.name_any()),
        || show::details(&sandbox, found.claim.as_ref(), problem.as_deref(), ports, jiff::Timestamp::now()),
    )
}

pub(crate) async fn suspend(cluster: &ClusterClient, args: SuspendArgs) -> Result<()> {
    cluster.announce_change();
    for name in &args.names {
        let sandbox = match sdk::suspend(&cluster.client, &cluster.namespace, name).await {
            Ok(sandbox) => sandbox.name_any(),
            Err(error) => return Err(with_suggestion(&cluster.client, &cluster.namespace, error).await),
        };
        if !args.wait.is_zero() {
            sdk::sandbox_suspended(&cluster.client, &cluster.namespace, &sandbox, args.wait).await?;
        }
        output::print(&format!("sandbox {sandbox} suspended; its files are kept\n"))?;
    }
    Ok(())
}

pub(crate) async fn keep_alive(cluster: &ClusterClient, args: KeepAliveArgs) -> Result<()> {
    cluster.announce_change();
    for name in &args.names {
        let sandbox = match sdk::keep_alive(&cluster.client, &cluster.namespace, name, args.time).await {
            Ok(sandbox) => sandbox,
            Err(error) => return Err(with_suggestion(&cluster.client, &cluster.namespace, error).await),
        };
        let until = show::asleep_at(&sandbox).map(|at| format!(" until {at} at least")).unwrap_or_default();
        output::print(&format!("sandbox {} stays awake{until}\n", sandbox.name_any()))?;
    }
    Ok(())
}

pub(crate) async fn resume(cluster: &ClusterClient, args: NamesArgs) -> Result<()> {
    cluster.announce_change();
    for name in &args.names {
        let sandbox = match sdk::resume(&cluster.client, &cluster.namespace, name).await {
            Ok(sandbox) => sandbox,
            Err(error) => return Err(with_suggestion(&cluster.client, &cluster.namespace, error).await),
        };
        if !args.wait.wait.is_zero() {
            waiting::resumed(cluster, &sandbox, args.wait.wait).await?;
        }
        output::print(&format!("sandbox {} resumed\n", sandbox.name_any()))?;
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
            Err(ClientError::NotFound { .. }) if args.force => continue,
            Err(error) => return Err(with_suggestion(&cluster.client, &cluster.namespace, error).await),
        };
        let limit = args.wait;
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
