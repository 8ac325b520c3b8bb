//! `controller` and `router`: one part of the system as a process of its own.

use crate::{allocator, output};
use agent_sandbox_controller::{flags::Flags, run_process, version_text};
use agent_sandbox_router::{RouterArgs, run_router};
use anyhow::{Context as _, Result};
use std::{io::IsTerminal, process::ExitCode};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code for wrong arguments, the same as clap's.
const USAGE_ERROR: u8 = 2;

/// Runs the controller with upstream's flags. The first argument takes the place of the program's name.
pub(crate) fn controller(arguments: Vec<String>) -> ExitCode {
    let flags = match Flags::parse_from_go(arguments) {
        Ok(flags) => flags,
        Err(error) => {
            // Also for `--help`: clap prints to the right stream and returns the right exit code for each.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE_ERROR));
        }
    };
    if flags.version {
        return match output::print(&format!("{}\n", version_text())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    allocator::disable_purge_delay();
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

/// Logs text to a terminal, JSON elsewhere.
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
            return Ok(ExitCode::from(USAGE_ERROR));
        }
    };
    run_router(config, cancelled_by_signals()?).await?;
    Ok(ExitCode::SUCCESS)
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
