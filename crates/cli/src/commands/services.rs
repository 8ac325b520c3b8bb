//! `router` and `token`: one part of the system as a process of its own.

use crate::{args::TokenArgs, args::TokenCommand, output};
use agent_sandbox_router::{RouterArgs, mint_token, run_router};
use anyhow::{Context as _, Result};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a shell expects for wrong arguments, as clap itself does.
const USAGE: u8 = 2;

pub(crate) async fn router(args: RouterArgs) -> Result<ExitCode> {
    let config = match args.into_config(&|name| std::env::var(name).ok()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    run_router(config, cancelled_by_signals()?).await?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn token(args: &TokenArgs) -> Result<()> {
    match &args.command {
        TokenCommand::Mint(args) => output::print(&format!("{}\n", mint_token(args)?)),
    }
}

/// A token that SIGTERM or Ctrl-C cancels.
fn cancelled_by_signals() -> Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(token)
}
