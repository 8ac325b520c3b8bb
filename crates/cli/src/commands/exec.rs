//! `exec` and `shell`: a command in a sandbox, with this terminal's streams and the command's exit code.

use super::{
    objects::find_sandbox,
    streams::{Pumps, TIMED_OUT, check_terminal, exit_code, follow_size, until_output_closes},
    wrapper::{self, Surroundings},
};
use crate::{
    args::{ExecArgs, ShellArgs},
    cluster::ClusterClient,
    terminal::RawMode,
};
use agent_sandbox_client::{self as sdk, ClientError, ExecOptions, ExecStreams};
use anyhow::Result;
use futures::SinkExt;
use kube::api::TerminalSize;
use std::{
    io::IsTerminal,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Delay between attempts while an engine's sandboxes are starting.
const RETRY_DELAY: Duration = Duration::from_millis(100);

pub(crate) async fn exec(cluster: &ClusterClient, args: ExecArgs) -> Result<ExitCode> {
    check_terminal(args.tty)?;
    // The local engine starts the command as the user; the wrapper only checks that.
    let user = args.user.clone().filter(|_| cluster.is_local());
    let options = ExecOptions { container: args.container, user, stdin: args.interactive || args.tty, tty: args.tty };
    let mut surroundings = if args.tty { Surroundings::of_terminal() } else { Surroundings::default() };
    // Later variables replace earlier ones of the same name.
    surroundings.env.extend(args.env);
    let name = |user: String| user.split(':').next().unwrap_or_default().to_owned();
    surroundings.user = if options.user.is_some() { args.user.map(name) } else { args.user };
    surroundings.working_dir = args.workdir;
    let command = surroundings.wrap(&args.command);
    let running = run_in(cluster, &args.name, &command, options);
    match tokio::time::timeout(args.timeout.unwrap_or(Duration::MAX), running).await {
        Ok(outcome) => outcome,
        // The end of its connection ends the command.
        Err(_) => {
            eprintln!("error: the command was stopped: it took longer than --timeout");
            Ok(ExitCode::from(TIMED_OUT))
        }
    }
}

pub(crate) async fn shell(cluster: &ClusterClient, args: ShellArgs) -> Result<ExitCode> {
    let tty = std::io::stdin().is_terminal();
    let options = ExecOptions { container: args.container, stdin: true, tty, ..ExecOptions::default() };
    let surroundings = if tty { Surroundings::of_terminal() } else { Surroundings::default() };
    run_in(cluster, &args.name, &surroundings.wrap(&wrapper::shell(&args.name)), options).await
}

async fn run_in(cluster: &ClusterClient, name: &str, command: &[String], options: ExecOptions) -> Result<ExitCode> {
    let mut running = start_command(cluster, name, command, &options).await?;
    let process = running.process();
    let raw = if options.tty { RawMode::enter() } else { None };
    if options.tty
        && let Some(mut sizes) = process.terminal_size()
    {
        tokio::spawn(follow_size(async move |width, height| Ok(sizes.send(TerminalSize { width, height }).await?)));
    }
    let pumps = Pumps::start(process.stdin(), process.stdout(), process.stderr());
    let code = until_output_closes(async move {
        let code = running.exit().await;
        pumps.finish().await;
        Ok(exit_code(code?))
    })
    .await;
    drop(raw);
    code
}

/// Starts the command. A sandbox of an engine that was just started may need a moment until it runs again.
async fn start_command(
    cluster: &ClusterClient,
    name: &str,
    command: &[String],
    options: &ExecOptions,
) -> Result<ExecStreams> {
    let deadline = Instant::now() + sdk::READY_TIMEOUT;
    loop {
        let found = find_sandbox(cluster, name).await?;
        let started = async {
            let pod = sdk::awake_pod(&cluster.client, &found.sandbox).await?;
            sdk::exec(&cluster.client, &pod, command, options).await
        };
        match started.await {
            Err(ClientError::NotRunning { .. } | ClientError::Api { .. })
                if cluster.just_started && Instant::now() < deadline =>
            {
                tokio::time::sleep(RETRY_DELAY).await;
            }
            outcome => return Ok(outcome?),
        }
    }
}
