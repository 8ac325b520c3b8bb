//! `run`: one command in a sandbox of its own, on an engine of its own that is gone afterwards.

mod volumes;

use super::exec::exit_code;
use crate::{
    args::{Network, RunArgs},
    engine::{Engine, EngineConfig, Persistence},
    terminal::{self, RawMode},
};
use agent_sandbox_client::{self as sdk, ContainerOptions};
use agent_sandbox_node::runtime::{ExecRequest, ExecSession, TerminalSize};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::{core::v1::Pod, networking::v1::NetworkPolicy};
use kube::{Api, api::PostParams};
use serde_json::json;
use std::{io::IsTerminal, process::ExitCode, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

const NAME: &str = "run";
/// Where `timeout` commands everywhere say "it took too long".
const TIMED_OUT: u8 = 124;
/// What shells answer for a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// An image may have to be pulled first; starting itself takes milliseconds.
const STARTED: Duration = Duration::from_secs(600);
const LAST_OUTPUT: Duration = Duration::from_secs(5);
/// Private and special ranges that `--network public` keeps closed.
const NOT_PUBLIC: &[&str] =
    &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8"];

pub(crate) async fn run(args: RunArgs) -> Result<ExitCode> {
    if args.tty && !std::io::stdin().is_terminal() {
        bail!("--tty needs a terminal on standard input; leave it out in scripts");
    }
    let env = environment(&args.env)?;
    let volumes = args.volume.iter().map(|text| volumes::parse(text)).collect::<Result<Vec<_>>>()?;
    let folder = tempfile::Builder::new().prefix("agent-sandbox-run-").tempdir();
    let folder = folder.context("cannot make a temporary folder for the sandbox")?;
    let config = EngineConfig {
        persistence: Persistence::Throwaway(folder.path().to_owned()),
        api_listen: None,
        router_listen: None,
        router_open: false,
        host_paths: volumes.iter().map(|(source, _, _)| source.into()).collect(),
    };
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let engine = Engine::start(config).await?;
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
    if args.network == Network::Public {
        let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), "default");
        policies.create(&PostParams::default(), &public_policy()?).await.context("cannot open the network")?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = sdk::pod(NAME, &container).context("cannot describe the sandbox")?;
    pods.create(&PostParams::default(), &pod).await.context("cannot create the sandbox")?;
    let pod = sdk::pod_started(&client, "default", NAME, STARTED).await?;
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
    use super::exec::pump;
    if let Some(resize) = session.resize {
        let mut changes = signal(SignalKind::window_change()).context("cannot watch the terminal's size")?;
        tokio::spawn(async move {
            while changes.recv().await.is_some() {
                let Some((columns, rows)) = terminal::size() else { continue };
                // The command may have ended meanwhile; then there is nothing left to resize.
                let _ = resize(TerminalSize { rows, columns });
            }
        });
    }
    if let Some(stdin) = session.stdin {
        tokio::spawn(pump(tokio::io::stdin(), stdin));
    }
    let stdout = session.stdout.map(|stream| tokio::spawn(pump(stream, tokio::io::stdout())));
    let stderr = session.stderr.map(|stream| tokio::spawn(pump(stream, tokio::io::stderr())));
    let exit = session.exit.await?;
    for output in [stdout, stderr].into_iter().flatten() {
        let _ = tokio::time::timeout(LAST_OUTPUT, output).await;
    }
    Ok(exit_code(exit.code))
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
