//! `run`: one command in a sandbox of its own, on an engine of its own that is gone afterwards.

mod volumes;

use super::{
    image::find_login,
    progress::Progress,
    streams::{Pumps, check_terminal, exit_code, follow_size},
    why::refused,
};
use crate::{
    args::{GlobalArgs, Network, RunArgs},
    data::{self, DataDir},
    engine::{Doors, Engine, EngineConfig, Hosting, Persistence},
    host,
    terminal::{self, RawMode},
};
use agent_sandbox_client::{self as sdk, ContainerOptions};
use agent_sandbox_node::runtime::{
    ExecRequest, ExecSession, ImageService as _, PodRuntime as _, PullPolicy, PullProgress, RegistryCredentials,
    TerminalSize, WeaknessKind,
};
use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::api::{core::v1::Pod, networking::v1::NetworkPolicy};
use kube::{Api, api::PostParams};
use serde_json::json;
use std::{io::IsTerminal, path::PathBuf, process::ExitCode, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

const NAME: &str = "run";
/// This machine's own programs as an image.
const HOST: &str = "host";
/// Where `timeout` commands everywhere say "it took too long".
const TIMED_OUT: u8 = 124;
/// What shells answer for a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// An image may have to be pulled first; starting itself takes milliseconds.
const STARTED: Duration = Duration::from_secs(600);
/// Private and special ranges that `--network public` keeps closed.
const NOT_PUBLIC: &[&str] =
    &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8"];

pub(crate) async fn run(global: &GlobalArgs, args: RunArgs) -> Result<ExitCode> {
    check_terminal(args.tty)?;
    let env = environment(&args.env)?;
    if let Some(blocked) = host::blocked() {
        return Err(blocked.into());
    }
    let volumes = args.volume.iter().map(|text| volumes::parse(text)).collect::<Result<Vec<_>>>()?;
    let folder = tempfile::Builder::new().prefix("agent-sandbox-run-").tempdir();
    let folder = folder.context("cannot make a temporary folder for the sandbox")?;
    let config = EngineConfig {
        persistence: Persistence::Throwaway(folder.path().to_owned()),
        doors: Doors::default(),
        hosting: Hosting {
            host_paths: volumes.iter().map(|(source, _, _)| source.into()).collect(),
            images: image_folder(global, &args.image)?,
            throwaway: true,
            ..Hosting::default()
        },
    };
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let engine = Engine::start(config).await.map_err(host::blame)?;
    warn_of_weaknesses(&engine, &args);
    let container = ContainerOptions {
        image: args.image.clone(),
        memory: args.memory.clone(),
        cpus: args.cpus.clone(),
        runtime_class: args.isolation.clone(),
        working_dir: args.workdir.clone(),
        env,
        host_paths: volumes,
        ..ContainerOptions::default()
    };
    let limit = args.timeout.unwrap_or(Duration::MAX);
    let outcome = tokio::select! {
        outcome = tokio::time::timeout(limit, in_sandbox(&engine, &args, container)) => match outcome {
            Ok(outcome) => outcome,
            Err(_) => {
                eprintln!("error: the command was stopped: it took longer than --timeout");
                Ok(ExitCode::from(TIMED_OUT))
            }
        },
        _ = interrupt.recv() => Ok(ExitCode::from(INTERRUPTED)),
        _ = terminate.recv() => Ok(ExitCode::from(INTERRUPTED)),
        // A closed terminal must not leave the sandbox behind: nobody could find it again.
        _ = hangup.recv() => Ok(ExitCode::from(INTERRUPTED)),
    };
    engine.remove().await?;
    outcome
}

async fn in_sandbox(engine: &Engine, args: &RunArgs, container: ContainerOptions) -> Result<ExitCode> {
    let client = engine.client();
    fetch(engine, &args.image).await?;
    if args.network == Network::Public {
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), "default");
        policies.create(&PostParams::default(), &public_policy()?).await.context("cannot open the network")?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = sdk::pod(NAME, &container).context("cannot describe the sandbox")?;
    pods.create(&PostParams::default(), &pod).await.context("cannot create the sandbox")?;
    let pod = tokio::select! {
        started = sdk::pod_started(&client, "default", NAME, STARTED) => started?,
        reason = refused(&client, "default", NAME) => {
            return Err(host::blame(anyhow!("the sandbox cannot start: {reason}")));
        }
    };
    let size = terminal::size().filter(|_| args.tty).map(|(columns, rows)| TerminalSize { rows, columns });
    let request = ExecRequest {
        command: args.command.clone(),
        working_dir: args.workdir.clone(),
        stdin: args.interactive || args.tty || !std::io::stdin().is_terminal(),
        stdout: true,
        stderr: !args.tty,
        tty: args.tty,
        size,
        ..ExecRequest::default()
    };
    let session = engine.exec(&pod, request).await?;
    let raw = if args.tty { RawMode::enter() } else { None };
    let code = attend(session).await;
    drop(raw);
    code
}

/// Connects this process's streams with the session's until the command ends.
async fn attend(session: ExecSession) -> Result<ExitCode> {
    if let Some(resize) = session.resize {
        // The command may end meanwhile; then there is nothing left to resize.
        tokio::spawn(follow_size(async move |columns, rows| Ok(resize(TerminalSize { rows, columns })?)));
    }
    let pumps = Pumps::start(session.stdin, session.stdout, session.stderr);
    let exit = session.exit.await?;
    pumps.finish().await;
    Ok(exit_code(exit.code))
}

/// Images are shared with the engine of the same user, so that what was pulled or imported once is there. This machine's own programs
/// need no store: what stands around them is kept in a cache, where there is one, and made anew in the sandbox's own folder elsewhere.
fn image_folder(global: &GlobalArgs, image: &str) -> Result<Option<PathBuf>> {
    if image == HOST {
        return Ok(data::cache());
    }
    let data = DataDir::locate(global.data_dir.as_deref())?;
    data.create().with_context(|| format!("cannot make the data folder {}", data.path().display()))?;
    Ok(Some(data.images()))
}

/// Pulls the image, with progress on a terminal, before a Pod asks for it.
async fn fetch(engine: &Engine, image: &str) -> Result<()> {
    if image == HOST {
        return Ok(());
    }
    let credentials: Vec<_> = find_login(image)?.into_iter().map(RegistryCredentials::from).collect();
    let line = Progress::start(image.to_owned(), None);
    let (progress, mut seen) = watch::channel(PullProgress::default());
    let kernel = engine.kernel();
    let work = kernel.ensure(image, PullPolicy::IfNotPresent, &credentials, Some(progress));
    tokio::pin!(work);
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome,
            Ok(()) = seen.changed() => {
                let PullProgress { done, total } = *seen.borrow_and_update();
                line.set(done, total);
            }
        }
    };
    line.finish();
    outcome.map(drop).with_context(|| format!("cannot use the image {image}"))
}

/// Says what was asked for and cannot be had here.
fn warn_of_weaknesses(engine: &Engine, args: &RunArgs) {
    for weakness in engine.kernel().weaknesses() {
        let concerned = match weakness.kind {
            WeaknessKind::LimitNotEnforced => args.memory.is_some() || args.cpus.is_some(),
            WeaknessKind::NoEgress => args.network == Network::Public,
            _ => false,
        };
        if concerned {
            eprintln!("warning: {}", weakness.message);
        }
    }
}

/// `NAME=VALUE`, or `NAME` for this process's own value.
fn environment(words: &[String]) -> Result<Vec<(String, String)>> {
    words
        .iter()
        .map(|word| match word.split_once('=') {
            Some(("", _)) => bail!("`{word}` has no name before the equals sign"),
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => match std::env::var(word) {
                Ok(value) => Ok((word.clone(), value)),
                Err(_) => bail!("`--env {word}`: this shell has no variable `{word}`; write {word}=VALUE"),
            },
        })
        .collect()
}

fn public_policy() -> Result<NetworkPolicy> {
    let to = json!([{"ipBlock": {"cidr": "0.0.0.0/0", "except": NOT_PUBLIC}}]);
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "public"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": to}]},
    });
    Ok(serde_json::from_value(policy)?)
}
