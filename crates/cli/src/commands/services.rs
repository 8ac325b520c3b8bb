//! `controller`, `router` and `token`: one part of the system as a process of its own.

use crate::{args::TokenArgs, args::TokenCommand, memory, output};
use agent_sandbox_controller::{flags::Flags, run_process, version_text};
use agent_sandbox_router::{RouterArgs, mint_token, run_router};
use anyhow::{Context as _, Result};
use std::{io::IsTerminal, process::ExitCode};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a shell expects for wrong arguments, as clap itself does.
const USAGE: u8 = 2;

/// Runs the controller with upstream's flags; the first word stands for the program's name.
pub(crate) fn controller(arguments: Vec<String>) -> ExitCode {
    let flags = match Flags::parse_from_go(arguments) {
        Ok(flags) => flags,
        Err(error) => {
            // Help and mistakes alike: clap knows which stream and which code each deserves.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE));
        }
    };
    if flags.version {
        return match output::print(&format!("{}\n", version_text())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    memory::be_thrifty();
    start_cluster_logging(flags.log_level().unwrap_or("info"));
    match run_controller(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_controller(flags: Flags) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async { Ok(run_process(flags, cancelled_by_signals()?).await?) })
}

/// JSON where a collector reads it, text where a person does.
fn start_cluster_logging(level: &str) {
    let filter =
        tracing_subscriber::EnvFilter::new(format!("warn,agent_sandbox={level},agent_sandbox_controller={level}"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() { builder.init() } else { builder.json().init() }
}

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
pub(crate) fn cancelled_by_signals() -> Result<CancellationToken> {
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
