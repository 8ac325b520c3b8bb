//! `run`: one command in a new sandbox, on an ephemeral engine that is removed afterwards.

mod volumes;

use super::{
    image::find_login,
    pod_warnings::{start_failure, with_host_problem},
    progress::Progress,
    streams::{Pumps, check_terminal, exit_code, follow_size, until_output_closes},
};
use crate::{
    args::{GlobalArgs, Network, RunArgs},
    terminal::{self, RawMode},
};
use agent_sandbox_client::{self as sdk, ContainerOptions};
use agent_sandbox_engine::{
    DataDir, Engine, EngineConfig, ListenConfig, NodeConfig, Persistence, host_check, host_image_cache,
};
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

/// Name of the Pod.
const NAME: &str = "run";
/// The image that contains this machine's own programs.
const HOST_IMAGE: &str = "host";
/// Exit code after `--timeout`, the same as that of `timeout`.
const TIMED_OUT: u8 = 124;
/// Exit code of shells for a command that Ctrl-C ended: 128 + SIGINT.
const INTERRUPTED: u8 = 130;
/// Timeout for the sandbox's start. Starting takes milliseconds, but the image may have to be pulled first.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// Private and special address ranges that `--network public` does not open.
const NOT_PUBLIC: &[&str] =
    &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8"];

pub(crate) async fn run(global: &GlobalArgs, args: RunArgs) -> Result<ExitCode> {
    check_terminal(args.tty)?;
    let env = environment(&args.env)?;
    if let Some(problem) = host_check::check_settings() {
        return Err(problem.into());
    }
    let volumes = args.volume.iter().map(|text| volumes::parse(text)).collect::<Result<Vec<_>>>()?;
    let folder = tempfile::Builder::new().prefix("agent-sandbox-run-").tempdir();
    let folder = folder.context("cannot make a temporary folder for the sandbox")?;
    let config = EngineConfig {
        persistence: Persistence::Ephemeral(folder.path().to_owned()),
        listen: ListenConfig::default(),
        node: NodeConfig {
            host_paths: volumes.iter().map(|(source, _, _)| source.into()).collect(),
            images: image_folder(global, &args.image)?,
            ephemeral: true,
            ..NodeConfig::default()
        },
    };
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let engine = Engine::start(config).await.map_err(with_host_problem)?;
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
        outcome = tokio::time::timeout(limit, run_in_sandbox(&engine, &args, container)) => match outcome {
            Ok(outcome) => outcome,
            Err(_) => {
                eprintln!("error: the command was stopped: it took longer than --timeout");
                Ok(ExitCode::from(TIMED_OUT))
            }
        },
        _ = interrupt.recv() => Ok(ExitCode::from(INTERRUPTED)),
        _ = terminate.recv() => Ok(ExitCode::from(INTERRUPTED)),
        // A closed terminal must not leave the sandbox behind: no command could find it again.
        _ = hangup.recv() => Ok(ExitCode::from(INTERRUPTED)),
    };
    engine.remove().await?;
    outcome
}

async fn run_in_sandbox(engine: &Engine, args: &RunArgs, container: ContainerOptions) -> Result<ExitCode> {
    let client = engine.client();
    pull(engine, &args.image).await?;
    if args.network == Network::Public {
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), "default");
        policies.create(&PostParams::default(), &public_policy()?).await.context("cannot open the network")?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = sdk::pod(NAME, &container).context("cannot describe the sandbox")?;
    pods.create(&PostParams::default(), &pod).await.context("cannot create the sandbox")?;
    let pod = tokio::select! {
        started = sdk::pod_started(&client, "default", NAME, START_TIMEOUT) => started?,
        reason = start_failure(&client, "default", NAME, None) => {
            return Err(with_host_problem(anyhow!("the sandbox cannot start: {reason}")));
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
    let code = until_output_closes(connect_streams(session)).await;
    drop(raw);
    code
}

/// Connects this process's streams with the session's until the command ends.
async fn connect_streams(session: ExecSession) -> Result<ExitCode> {
    if let Some(resize) = session.resize {
        // Fails when the command ends meanwhile; then there is nothing to resize.
        tokio::spawn(follow_size(async move |columns, rows| Ok(resize(TerminalSize { rows, columns })?)));
    }
    let pumps = Pumps::start(session.stdin, session.stdout, session.stderr);
    let exit = session.exit.await?;
    pumps.finish().await;
    Ok(exit_code(exit.code))
}

/// Folder of the image store: shared with the engine of the same user, so that `run` finds images that were pulled or
/// imported. The image `host` needs no store: it is cached, or made anew in the sandbox's own folder where there is no
/// cache.
fn image_folder(global: &GlobalArgs, image: &str) -> Result<Option<PathBuf>> {
    if image == HOST_IMAGE {
        return Ok(host_image_cache());
    }
    let data = DataDir::locate(global.data_dir.as_deref())?;
    data.create().with_context(|| format!("cannot make the data folder {}", data.path().display()))?;
    Ok(Some(data.images()))
}

/// Pulls the image before the Pod is created, to show progress on a terminal.
async fn pull(engine: &Engine, image: &str) -> Result<()> {
    if image == HOST_IMAGE {
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

/// Warns about limits or network access that was requested and is not available on this machine.
fn warn_of_weaknesses(engine: &Engine, args: &RunArgs) {
    for weakness in engine.kernel().weaknesses() {
        let relevant = match weakness.kind {
            WeaknessKind::LimitNotEnforced => args.memory.is_some() || args.cpus.is_some(),
            WeaknessKind::NoEgress => args.network == Network::Public,
            _ => false,
        };
        if relevant {
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
