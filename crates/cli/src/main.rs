//! `agent-sandbox`: the one user-facing binary. It parses, calls and prints.

mod args;
mod commands;
mod data;
mod engine;
mod host;
mod memory;
mod output;
mod target;
mod terminal;

use std::process::ExitCode;

/// An API that decodes and encodes objects all day allocates most of the time; with the system's allocator it is half as fast.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A Pod's supervisor and the helpers that enter sandboxes are this same program, started anew.
    agent_sandbox_node::helper_main();
    // The controller takes upstream's flags, in Go's spelling, and none of ours.
    let controller: Vec<String> = std::env::args().skip(1).collect();
    if controller.first().is_some_and(|word| word == "controller") {
        return commands::controller(controller);
    }
    let cli = args::parse(std::env::args_os());
    if let args::Command::Controller { arguments } = cli.command {
        // Flags of ours came first. The one that both have means the same.
        let program = ["controller".to_owned()].into_iter();
        let kubeconfig = cli.global.kubeconfig.map(|path| format!("--kubeconfig={path}"));
        return commands::controller(program.chain(kubeconfig).chain(arguments).collect());
    }
    start_logging(cli.global.verbose, &cli.command);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("cannot start the runtime")),
    };
    let outcome = runtime.block_on(commands::dispatch(cli));
    // A blocked read of standard input must not hold the process.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|error| fail(&error))
}

/// Prints the chain of causes once, here and nowhere else.
fn fail(error: &anyhow::Error) -> ExitCode {
    let mut said = words_of(error.as_ref());
    eprintln!("error: {said}");
    for cause in error.chain().skip(1) {
        let cause = words_of(cause);
        // Layers that repeat their source's words add nothing.
        if !said.contains(&cause) && !cause.starts_with(&said) {
            eprintln!("  caused by: {cause}");
        }
        said = cause;
    }
    ExitCode::FAILURE
}

/// What an error says. The API's own sentence is enough; the client would print the whole answer around it.
fn words_of(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) if !status.message.is_empty() => status.message.clone(),
        _ => error.to_string(),
    }
}

/// Our own parts at `level`. The Kubernetes client reports failed connections itself, beside returning them: once is enough.
fn default_filter(level: &str) -> String {
    let own = ["", "_apiserver", "_client", "_controller", "_mcp", "_node", "_router"];
    let own: Vec<String> = own.iter().map(|part| format!("agent_sandbox{part}={level}")).collect();
    format!("warn,kube_client::client::builder=off,{}", own.join(","))
}

/// Logs go to stderr: warnings for commands, state changes for long-running processes, more on request.
fn start_logging(verbose: u8, command: &args::Command) {
    let level = match (verbose, command.runs_a_service()) {
        (0, false) => "warn",
        (0, true) => "info",
        (1, _) => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("AGENT_SANDBOX_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default_filter(level)));
    let colours = terminal::wants_colour();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
}
