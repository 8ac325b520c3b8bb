//! The router alone, for benchmarks and process tests: `sandbox_router serve FLAGS…` and `sandbox_router mint ARGS…`.

use std::process::ExitCode;

use agent_sandbox_router::{RouterArgs, TokenMintArgs, mint_token, run_router};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    Serve(RouterArgs),
    Mint(TokenMintArgs),
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match Arguments::parse().command {
        Action::Serve(arguments) => serve(arguments),
        Action::Mint(arguments) => match mint_token(&arguments, None) {
            Ok(token) => {
                use std::io::Write;
                if writeln!(std::io::stdout(), "{token}").is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(error) => fail(&error, 1),
        },
    }
}

fn serve(arguments: RouterArgs) -> ExitCode {
    let config = match arguments.into_config(&|name| std::env::var(name).ok()) {
        Ok(config) => config,
        Err(error) => return fail(&error, 2),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, 1),
    };
    let result = runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be handled");
        let stop = shutdown.clone();
        tokio::spawn(async move {
            terminate.recv().await;
            stop.cancel();
        });
        run_router(config, shutdown).await
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, 1),
    }
}

fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    let mut cause = error.source();
    let mut text = error.to_string();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    tracing::error!("{text}");
    ExitCode::from(code)
}
