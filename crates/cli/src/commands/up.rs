//! `up`, `down` and `status`: the engine on this machine.

mod detach;
mod show;

use super::pod_warnings::with_host_problem;
use crate::{
    allocator::StartupMemory,
    args::{DownArgs, GlobalArgs, RouterAuth, StatusArgs, UpArgs},
    cluster::ClusterClient,
    output,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxWarmPool};
use agent_sandbox_engine::{
    DataDir, Engine, EngineConfig, ListenConfig, NodeConfig, Persistence, host_check, purge, ready_made,
    stop_leftovers, stop_running,
};
use agent_sandbox_node::runtime::PodRuntime as _;
use anyhow::{Context as _, Result, bail};
use kube::{Api, api::ListParams};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) async fn up(global: &GlobalArgs, args: UpArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    if let Some(problem) = host_check::check_settings() {
        return Err(problem.into());
    }
    data.create().with_context(|| format!("cannot make the data folder {}", data.path().display()))?;
    if let Some(running) = data.running() {
        bail!("the engine already runs here (process {}); stop it with `agent-sandbox down`", running.pid);
    }
    if args.detach && !args.in_background {
        let running = detach::start(&data).await?;
        return output::print(&show::ready(&data, &running));
    }
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    if args.router_auth == RouterAuth::None {
        eprintln!("warning: --router-auth=none: every process on this machine can use every sandbox");
    }
    let config = EngineConfig {
        persistence: Persistence::Folder(data.clone()),
        listen: ListenConfig {
            api: Some(args.api_listen),
            router: Some(args.router_listen),
            allow_unauthenticated_router: args.router_auth == RouterAuth::None,
            metrics: args.metrics_listen,
            control: Some(data.control()),
        },
        node: NodeConfig { images: Some(data.images()), ..args.node.into_config() },
    };
    let startup_memory = StartupMemory::begin();
    let engine = Engine::start(config).await.map_err(with_host_problem)?;
    for weakness in engine.kernel().weaknesses() {
        eprintln!("note: {}", weakness.message);
    }
    ready_made::install(&engine.client(), args.warm).await?;
    let running = data.publish_state(engine.api_url(), engine.router_url())?;
    output::print(&show::ready(&data, &running))?;
    if let Some(address) = engine.metrics_address() {
        output::print(&format!("  metrics:  http://{address}/metrics\n"))?;
    }
    startup_memory.release();
    // Ctrl-C (and `down`, which sends the same signal) stops the sandboxes. SIGTERM may be an upgrade: sandboxes keep
    // running.
    let stop_sandboxes = tokio::select! {
        _ = interrupt.recv() => true,
        _ = terminate.recv() => false,
    };
    data.remove_state();
    if stop_sandboxes {
        eprintln!("stopping sandboxes; their files are kept (Ctrl-C again to leave at once)");
        tokio::select! {
            stopped = engine.stop_sandboxes() => stopped?,
            _ = interrupt.recv() => {}
        }
    }
    engine.shutdown().await;
    Ok(())
}

pub(crate) async fn down(global: &GlobalArgs, args: &DownArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    match data.running() {
        Some(running) => stop_running(&data, &running).await?,
        None if data.node().exists() => stop_leftovers(&data).await?,
        None => {}
    }
    if args.purge {
        purge(&data)?;
        return output::print(&format!("stopped; the engine's data in {} is deleted\n", data.path().display()));
    }
    output::print("stopped; sandboxes and files are kept for the next `agent-sandbox up`\n")
}

pub(crate) async fn status(global: &GlobalArgs, args: &StatusArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let Some(running) = data.running() else {
        let folder = data.path().display();
        let value = serde_json::json!({"running": false, "dataDir": data.path()});
        let text = format!("not running (data folder {folder})\n  start it:  agent-sandbox up --detach\n");
        return output::emit(args.output.output, &value, || "stopped\n".to_owned(), || text);
    };
    let mut local = global.clone();
    (local.kubeconfig, local.context) = (Some(data.kubeconfig().display().to_string()), None);
    let cluster = ClusterClient::open(&local).await?;
    let all = ListParams::default();
    let sandboxes = Api::<Sandbox>::all(cluster.client.clone()).list(&all).await?;
    let pools = Api::<SandboxWarmPool>::all(cluster.client.clone()).list(&all).await?;
    let value = show::summary(&data, &running, &sandboxes.items, &pools.items);
    output::emit(
        args.output.output,
        &value,
        || "running\n".to_owned(),
        || show::status(&data, &running, &sandboxes.items, &pools.items),
    )
}
