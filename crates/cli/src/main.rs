//! `agent-sandbox`: the one user-facing binary. It parses, calls and prints.

mod allocator;
mod args;
mod cluster;
mod commands;
mod output;
mod terminal;

use std::process::ExitCode;

/// The embedded API spends most of its time in allocations, for decoding and encoding objects: with the system's
/// allocator it is half as fast.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Pod supervisors and the helpers that enter sandboxes are this same program, executed again.
    agent_sandbox_node::helper_main();
    // The controller takes upstream's flags, in Go's spelling, and none of the flags below.
    let controller: Vec<String> = std::env::args().skip(1).collect();
    if controller.first().is_some_and(|word| word == "controller") {
        return commands::controller(controller);
    }
    let cli = args::parse(std::env::args_os());
    if let args::Command::Controller { arguments } = cli.command {
        // Global flags came before the command. `--kubeconfig` means the same to the controller; it has none of the
        // others.
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
    // Does not wait for a blocked read of standard input.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|error| fail(&error))
}

/// Prints an error and its chain of causes. No other place prints errors of commands.
fn fail(error: &anyhow::Error) -> ExitCode {
    // Errors of the API and of Pods may repeat what another user wrote.
    let message = |error: &(dyn std::error::Error + 'static)| output::visible(&message(error));
    let mut printed = message(error.as_ref());
    eprintln!("error: {printed}");
    for cause in error.chain().skip(1) {
        let cause = message(cause);
        // Some errors repeat the message of their source.
        if !printed.contains(&cause) && !cause.starts_with(&printed) {
            eprintln!("  caused by: {cause}");
        }
        printed = cause;
    }
    ExitCode::FAILURE
}

/// An error's message. For an error of the API it is the Status message; kube would print the whole Status with it, and
/// the type of the error before that of a request without an answer.
fn message(error: &(dyn std::error::Error + 'static)) -> String {
    let boxed = || error.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
    match error.downcast_ref::<kube::Error>().or_else(boxed) {
        Some(kube::Error::Api(status)) if !status.message.is_empty() => status.message.clone(),
        Some(kube::Error::Service(cause)) => cause.to_string(),
        _ => error.to_string(),
    }
}

/// Log filter: our own crates at `level`, others at `warn`. The Kubernetes client logs failed connections besides
/// returning them; that log is off.
fn default_filter(level: &str) -> String {
    let own = ["", "_apiserver", "_client", "_controller", "_engine", "_mcp", "_node", "_router", "_streams"];
    let own: Vec<String> = own.iter().map(|part| format!("agent_sandbox{part}={level}")).collect();
    format!("warn,kube_client::client::builder=off,{}", own.join(","))
}

/// Logs to stderr: warnings for commands, state changes for long-running processes, more with `-v` or
/// `AGENT_SANDBOX_LOG`.
fn start_logging(verbose: u8, command: &args::Command) {
    let level = match (verbose, command.is_service()) {
        (0, false) => "warn",
        (0, true) => "info",
        (1, _) => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("AGENT_SANDBOX_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default_filter(level)));
    let colours = terminal::supports_colour();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
}
