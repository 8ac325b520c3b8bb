//! `exec` and `shell`: a command in a sandbox, with this terminal's streams and the command's exit code.

use super::objects::found;
use crate::{
    args::{ExecArgs, ShellArgs},
    target::Target,
    terminal::{self, RawMode},
};
use agent_sandbox_client::{self as sdk, ExecOptions};
use anyhow::{Context as _, Result, bail};
use futures::{SinkExt, channel::mpsc};
use kube::api::TerminalSize;
use std::{io::IsTerminal, process::ExitCode, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    signal::unix::{SignalKind, signal},
};

/// Output that is still on its way when the command's end is known gets this long to arrive.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

pub(crate) async fn exec(target: &Target, args: ExecArgs) -> Result<ExitCode> {
    if args.tty && !std::io::stdin().is_terminal() {
        bail!("--tty needs a terminal on standard input; leave it out in scripts");
    }
    let options = ExecOptions { container: args.container, stdin: args.interactive || args.tty, tty: args.tty };
    run_in(target, &args.name, &args.command, options).await
}

pub(crate) async fn shell(target: &Target, args: ShellArgs) -> Result<ExitCode> {
    let tty = std::io::stdin().is_terminal();
    let options = ExecOptions { container: args.container, stdin: true, tty };
    // bash where there is one, else whatever /bin/sh is.
    let script = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi";
    let command = ["/bin/sh", "-c", script].map(str::to_owned);
    run_in(target, &args.name, &command, options).await
}

async fn run_in(target: &Target, name: &str, command: &[String], options: ExecOptions) -> Result<ExitCode> {
    let found = found(target, name).await?;
    let pod = sdk::running_pod(&target.client, &found.sandbox).await?;
    let mut running = sdk::exec(&target.client, &pod, command, &options).await?;
    let process = running.process();
    let raw = if options.tty { RawMode::enter() } else { None };
    if options.tty
        && let Some(sizes) = process.terminal_size()
    {
        tokio::spawn(follow_size(sizes));
    }
    if let Some(stdin) = process.stdin() {
        tokio::spawn(pump(tokio::io::stdin(), stdin));
    }
    let stdout = process.stdout().map(|stream| tokio::spawn(pump(stream, tokio::io::stdout())));
    let stderr = process.stderr().map(|stream| tokio::spawn(pump(stream, tokio::io::stderr())));
    let code = running.exit().await;
    for output in [stdout, stderr].into_iter().flatten() {
        let _ = tokio::time::timeout(LAST_OUTPUT, output).await;
    }
    drop(raw);
    Ok(exit_code(code?))
}

/// An exit code as a process can have it.
pub(crate) fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}

/// Copies until the end, flushing whenever there is nothing more to read at once.
pub(crate) async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
    }
}

/// Tells the other side how large this terminal is, now and after each change.
async fn follow_size(mut sizes: mpsc::Sender<TerminalSize>) -> Result<()> {
    let mut changes = signal(SignalKind::window_change()).context("cannot watch the terminal's size")?;
    loop {
        if let Some((width, height)) = terminal::size() {
            sizes.send(TerminalSize { width, height }).await?;
        }
        if changes.recv().await.is_none() {
            return Ok(());
        }
    }
}
