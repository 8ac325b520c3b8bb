//! `exec` and `shell`: a command in a sandbox, with this terminal's streams and the command's exit code.

use super::{
    objects::find_sandbox,
    streams::{Pumps, check_terminal, exit_code, follow_size, until_output_closes},
};
use crate::{
    args::{ExecArgs, ShellArgs},
    cluster::ClusterClient,
    terminal::RawMode,
};
use agent_sandbox_client::{self as sdk, ExecOptions};
use anyhow::Result;
use futures::SinkExt;
use kube::api::TerminalSize;
use std::{io::IsTerminal, process::ExitCode};

pub(crate) async fn exec(cluster: &ClusterClient, args: ExecArgs) -> Result<ExitCode> {
    check_terminal(args.tty)?;
    let options = ExecOptions { container: args.container, stdin: args.interactive || args.tty, tty: args.tty };
    run_in(cluster, &args.name, &args.command, options).await
}

pub(crate) async fn shell(cluster: &ClusterClient, args: ShellArgs) -> Result<ExitCode> {
    let tty = std::io::stdin().is_terminal();
    let options = ExecOptions { container: args.container, stdin: true, tty };
    // bash where it is installed, else sh.
    let script = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi";
    let command = ["/bin/sh", "-c", script].map(str::to_owned);
    run_in(cluster, &args.name, &command, options).await
}

async fn run_in(cluster: &ClusterClient, name: &str, command: &[String], options: ExecOptions) -> Result<ExitCode> {
    let found = find_sandbox(cluster, name).await?;
    let pod = sdk::running_pod(&cluster.client, &found.sandbox).await?;
    let mut running = sdk::exec(&cluster.client, &pod, command, &options).await?;
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
