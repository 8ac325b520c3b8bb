//! `up`, `down` and `status`: the engine on this machine.

mod detach;
mod recovery;
mod replace;
mod show;

use super::{host_problem::with_host_problem, kubeconfig};
use crate::{
    allocator::StartupMemory,
    args::{DownArgs, GlobalArgs, RouterAuth, StatusArgs, UpArgs},
    cluster::ClusterClient,
    output,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxWarmPool};
use agent_sandbox_engine::{
    DataDir, Engine, EngineConfig, EngineError, ListenConfig, NodeConfig, Persistence, host_check, purge, ready_made,
    stop_leftovers, stop_running,
};
use agent_sandbox_node::runtime::PodRuntime as _;
use agent_sandbox_telemetry::audit::AuditConfig;
use anyhow::{Context as _, Result, bail};
use kube::{Api, api::ListParams};
use std::{
    io::IsTerminal as _,
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
};
use tokio::signal::unix::{SignalKind, signal};

/// The API's usual port, which other Kubernetes distributions use too.
const API_PORT: u16 = 6443;
/// Exit code of `status` while no engine runs, as service managers use it.
const NOT_RUNNING: u8 = 3;

pub(crate) async fn up(global: &GlobalArgs, args: UpArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    if let Some(problem) = host_check::check_settings() {
        return Err(problem.into());
    }
    data.create().with_context(|| format!("cannot make the data folder {}", data.path().display()))?;
    let stays = args.detach && !args.in_background && args.idle_timeout.is_none();
    // Held until the new engine runs: a command that is starting one comes first, and none starts one meanwhile.
    let _lock = if stays { Some(replace::lock(&data).await?) } else { None };
    match data.running() {
        Some(running) if stays && replace::ends_when_unused(running.pid) => replace::end(&data).await?,
        Some(running) => {
            bail!("the engine already runs here (process {}); stop it with `agent-sandbox down`", running.pid)
        }
        None => {}
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
    let usual_port = data.api_port().unwrap_or(API_PORT);
    let config = EngineConfig {
        audit: audit_config(&data, &args)?,
        persistence: Persistence::Folder(data.clone()),
        listen: ListenConfig {
            api: Some(args.api_listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, usual_port)))),
            api_port_may_change: args.api_listen.is_none(),
            router: Some(args.router_listen),
            allow_unauthenticated_router: args.router_auth == RouterAuth::None,
            metrics: args.metrics_listen,
            control: Some(data.control()),
        },
        node: NodeConfig { images: Some(data.images()), ..args.node.into_config() },
    };
    if args.in_background {
        // The folder of the command that started the engine must not be in use as long as the engine runs.
        std::env::set_current_dir("/").context("cannot change to the folder /")?;
    }
    let startup_memory = StartupMemory::begin();
    let engine = Engine::start(config).await.map_err(|error| with_host_problem(with_port_hint(error)))?;
    if let Some(port) = engine.api_port().filter(|port| args.api_listen.is_none() && *port != usual_port) {
        eprintln!("note: port {usual_port} is in use; the API is at port {port}, now and after a restart");
        data.remember_api_port(port).context("cannot remember the API's port")?;
    }
    for weakness in engine.kernel().weaknesses() {
        eprintln!("note: {}", weakness.message);
    }
    if !ready_made::install(&engine.client(), args.warm).await? {
        eprintln!("note: --warm changes nothing: the pool {} was deleted", ready_made::NAME);
    }
    // Before the state is published: `up --detach` repeats only notes that it finds then.
    match kubeconfig::update_merged(&data) {
        Ok(None) => {}
        Ok(Some(path)) => eprintln!("note: context agent-sandbox in {} now has the new address", path.display()),
        Err(error) => eprintln!("warning: {error:#}; renew it with `agent-sandbox kubeconfig --merge`"),
    }
    // Before the state is published, too: the first command finds the Pods of an earlier engine running.
    recovery::wait(&engine).await.context("cannot read the Pods of an earlier engine")?;
    let running = data.publish_state(engine.api_url(), engine.router_url())?;
    output::print(&show::ready(&data, &running))?;
    if let Some(address) = engine.metrics_address() {
        output::print(&format!("  metrics:  http://{address}/metrics\n"))?;
    }
    startup_memory.release();
    // Ctrl-C (and `down`, which sends the same signal) stops the sandboxes. SIGTERM may be an upgrade: sandboxes keep
    // running.
    let idle = async {
        match args.idle_timeout {
            Some(limit) => engine.wait_until_idle(limit).await,
            None => std::future::pending().await,
        }
    };
    let (stop_sandboxes, _lock) = tokio::select! {
        _ = interrupt.recv() => (true, None),
        _ = terminate.recv() => (false, None),
        () = idle => {
            eprintln!("nobody uses this engine: it ends");
            (true, data.lock().ok())
        }
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

/// Where the audit log goes: the data folder, unless the command line says otherwise.
fn audit_config(data: &DataDir, args: &UpArgs) -> Result<Option<AuditConfig>> {
    let target = match args.audit_log.as_deref() {
        Some("none") => return Ok(None),
        Some("-") => "-".to_owned(),
        // Absolute, because the current folder changes.
        Some(target) => std::path::absolute(target).context("cannot find the audit log")?.display().to_string(),
        None => {
            data.create_audit_folder().context("cannot make the folder of the audit log")?;
            data.audit_log().display().to_string()
        }
    };
    let redaction_file = args.audit_redact_file.as_deref().map(std::path::absolute).transpose();
    Ok(Some(AuditConfig { target, redaction_file: redaction_file.context("cannot find --audit-redact-file")? }))
}

/// Adds to an error about a port in use how to choose another one.
fn with_port_hint(error: EngineError) -> anyhow::Error {
    let error = anyhow::Error::new(error);
    let in_use = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    match in_use.into_iter().any(|cause| cause.kind() == std::io::ErrorKind::AddrInUse) {
        true => error.context("a port is in use; choose another one with --api-listen, --router-listen or --metrics-listen (port 0: any free one)"),
        false => error,
    }
}

pub(crate) async fn down(global: &GlobalArgs, args: &DownArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let folder = data.path().display();
    if args.purge && !args.yes && !confirmed(&format!("delete all sandboxes, volumes and images in {folder}?"))? {
        bail!("nothing was stopped or deleted");
    }
    let stopped = match data.running() {
        Some(running) => {
            stop_running(&data, &running).await?;
            "stopped"
        }
        None if data.node().exists() => {
            stop_leftovers(&data).await?;
            "no engine was running"
        }
        None => "no engine was running",
    };
    if args.purge {
        if let Some(path) = kubeconfig::remove_merged(&data)? {
            eprintln!("removed context agent-sandbox from {}", path.display());
        }
        purge(&data)?;
        return output::print(&format!("{stopped}; the engine's data in {folder} is deleted\n"));
    }
    let kept = match data.node().exists() {
        true => "sandboxes and files are kept for the next `agent-sandbox up`".to_owned(),
        false => format!("there is no data in {folder}"),
    };
    output::print(&format!("{stopped}; {kept}\n"))
}

/// Asks on the terminal. Without a terminal the answer must be given with `--yes`.
fn confirmed(question: &str) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("--purge asks before it deletes, and there is no terminal to ask on; add --yes");
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

pub(crate) async fn status(global: &GlobalArgs, args: &StatusArgs) -> Result<ExitCode> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let Some(running) = data.running() else {
        let folder = data.path().display();
        let value = serde_json::json!({"running": false, "dataDir": data.path()});
        let text = format!("not running (data folder {folder})\n  start it:  agent-sandbox up --detach\n");
        output::emit(args.output.output, &value, || "stopped\n".to_owned(), || text)?;
        return Ok(ExitCode::from(NOT_RUNNING));
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
    )?;
    Ok(ExitCode::SUCCESS)
}
