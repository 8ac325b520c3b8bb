//! `up`, `down` and `status`: the engine on this machine.

mod detach;
mod show;

use crate::{
    args::{DownArgs, GlobalArgs, RouterAuth, StatusArgs, UpArgs},
    data::{DataDir, Running, start_ticks},
    engine::{Doors, Engine, EngineConfig, Hosting, Persistence, install},
    host, memory, output,
    target::Target,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxWarmPool};
use agent_sandbox_node::runtime::PodRuntime as _;
use anyhow::{Context as _, Result, bail};
use kube::{Api, api::ListParams};
use rustix::process::{Pid, Signal};
use std::{fs, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// Stopping sandboxes gracefully takes their grace period, 30 s unless they say otherwise.
const STOP: Duration = Duration::from_secs(60);

pub(crate) async fn up(global: &GlobalArgs, args: UpArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    if let Some(blocked) = host::blocked() {
        return Err(blocked.into());
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
        doors: Doors {
            api: Some(args.api_listen),
            router: Some(args.router_listen),
            router_open: args.router_auth == RouterAuth::None,
            metrics: args.metrics_listen,
            control: Some(data.control()),
        },
        hosting: Hosting { images: Some(data.images()), ..args.hosting.hosting() },
    };
    let start = memory::Start::begin();
    let engine = Engine::start(config).await.map_err(host::blame)?;
    for weakness in engine.kernel().weaknesses() {
        eprintln!("note: {}", weakness.message);
    }
    install::ready_made(&engine.client(), args.warm).await?;
    let running = data.announce(engine.api_url(), engine.router_url())?;
    output::print(&show::ready(&data, &running))?;
    if let Some(address) = engine.metrics_address() {
        output::print(&format!("  metrics:  http://{address}/metrics\n"))?;
    }
    start.settled();
    // Ctrl-C is the user saying that they are done; anything else may be an upgrade, and sandboxes go on.
    let stop_sandboxes = tokio::select! {
        _ = interrupt.recv() => true,
        _ = terminate.recv() => false,
    };
    data.retract();
    if stop_sandboxes {
        eprintln!("stopping sandboxes; their files are kept (Ctrl-C again to leave at once)");
        tokio::select! {
            stopped = tokio::time::timeout(STOP, engine.stop_sandboxes()) => stopped.context("sandboxes did not stop in time")??,
            _ = interrupt.recv() => {}
        }
    }
    engine.shutdown().await;
    Ok(())
}

pub(crate) async fn down(global: &GlobalArgs, args: &DownArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    match data.running() {
        Some(running) => stop(&data, &running).await?,
        None if data.node().exists() => stop_leftovers(&data).await?,
        None => {}
    }
    if args.purge {
        purge(&data)?;
        return output::print(&format!("stopped; the engine's data in {} is deleted\n", data.path().display()));
    }
    output::print("stopped; sandboxes and files are kept for the next `agent-sandbox up`\n")
}

/// Asks the running engine to stop its sandboxes and leave, and waits until it has.
async fn stop(data: &DataDir, running: &Running) -> Result<()> {
    let pid = i32::try_from(running.pid).ok().and_then(Pid::from_raw).context("the state file holds no process id")?;
    match rustix::process::kill_process(pid, Signal::INT) {
        Err(rustix::io::Errno::PERM) => {
            bail!("the engine (process {}) was started with sudo; stop it the same way", running.pid)
        }
        signalled => signalled.with_context(|| format!("cannot signal process {}", running.pid))?,
    }
    let gone = async {
        while start_ticks(running.pid) == Some(running.start_ticks) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(STOP + Duration::from_secs(5), gone).await;
    waited.with_context(|| format!("process {} did not stop; its log is {}", running.pid, data.log().display()))
}

/// Sandboxes of an engine that crashed or was terminated still run: an engine is started just to stop them.
async fn stop_leftovers(data: &DataDir) -> Result<()> {
    let config = EngineConfig {
        persistence: Persistence::Folder(data.clone()),
        doors: Doors::default(),
        hosting: Hosting { images: Some(data.images()), ..Hosting::default() },
    };
    let engine = Engine::start(config).await?;
    tokio::time::timeout(STOP, engine.stop_sandboxes()).await.context("sandboxes did not stop in time")??;
    engine.shutdown().await;
    Ok(())
}

/// Deletes what the engine made, and the folder if that was all there was in it.
fn purge(data: &DataDir) -> Result<()> {
    for path in data.contents() {
        // Not by the standard library: sandboxes' files may be closed, or belong to other ids.
        let removed = agent_sandbox_node::kernel::remove_data(&path);
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot delete {}", path.display()));
            }
            _ => {}
        }
    }
    // A folder with anything else in it is the user's.
    let _ = fs::remove_dir(data.path());
    Ok(())
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
    let target = Target::find(&local).await?;
    let everything = ListParams::default();
    let sandboxes = Api::<Sandbox>::all(target.client.clone()).list(&everything).await?;
    let pools = Api::<SandboxWarmPool>::all(target.client.clone()).list(&everything).await?;
    let value = show::summary(&data, &running, &sandboxes.items, &pools.items);
    output::emit(
        args.output.output,
        &value,
        || "running\n".to_owned(),
        || show::status(&data, &running, &sandboxes.items, &pools.items),
    )
}
