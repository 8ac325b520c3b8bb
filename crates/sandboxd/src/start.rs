//! Start-up and shutdown: from the configuration to a serving daemon, also as PID 1, and to its exit status.

mod assemble;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use agent_sandbox_protocol::web::HostError;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{self, Config, ConfigError, Invocation};
use crate::core::files::FileError;
use crate::core::paths::Mode;
use crate::core::processes::inherited;
use crate::core::processes::launch::LaunchError;
use crate::core::processes::reaper::{Child, block_signals};
use crate::core::processes::{Launch, Reaper, Stdin};
use crate::memory::release_when_idle;
use crate::server::{App, Listeners, Port, Token, serve};

const BLOCKING_THREADS: usize = 16;
/// Threads are kept forever: at the process limit no new thread can be started, and file operations still need one.
const BLOCKING_THREAD_KEEP_ALIVE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const BLOCKING_THREAD_STACK: usize = 256 * 1024;

/// Why the daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot use directory {path:?}: {source}")]
    Directory { path: PathBuf, source: FileError },
    #[error("cannot read the token: {0}")]
    Token(std::io::Error),
    #[error("--allowed-host: {0}")]
    Host(#[from] HostError),
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
    #[error("cannot start the command: {0}")]
    Command(#[from] LaunchError),
}

/// The program: reads arguments and environment, runs the daemon, and returns its exit status.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let invocation = config::parse(arguments, |name| std::env::var(name).ok());
    let outcome = match invocation {
        Ok(Invocation::Help) => return print(config::USAGE),
        Ok(Invocation::Version) => return print(concat!("sandboxd ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Invocation::Run(config)) => run(*config),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "sandboxd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Runs the daemon until a stop signal arrives or its command ends; returns the exit status. It takes over the process:
/// call it before anything else starts threads or children.
pub fn run(config: Config) -> Result<u8, RunError> {
    block_signals();
    inherited::set_cloexec();
    // Commands must not be able to read the daemon's memory or descriptors.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(config.log_level).with_ansi(false).init();
    // One thread, plus blocking threads for file operations: a sandbox serves one agent. Each further thread would slow
    // down every start, and every command by switches between processors.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(BLOCKING_THREAD_STACK)
        .thread_keep_alive(BLOCKING_THREAD_KEEP_ALIVE)
        .enable_all()
        .build()?;
    // Starts the first blocking thread before the process limit can be reached.
    drop(runtime.spawn_blocking(|| ()));
    let outcome = runtime.block_on(daemon(config));
    runtime.shutdown_background();
    outcome
}

async fn daemon(config: Config) -> Result<u8, RunError> {
    // Before the daemon becomes visible: PID 1 ignores a stop signal that it has no handler for.
    let mut signals = Signals::install()?;
    let token = config.token.as_ref().map(Token::read).transpose().map_err(RunError::Token)?;
    let reaper = Reaper::start()?;
    let base = base_directory(&config);
    let app = Arc::new(assemble::app(&config, &base, &reaper, token)?);
    let open = inherited::listeners(config.inherited_sockets);
    let mut listeners = Listeners::bind(&config.listen, &config.listen_if_free, &config.unix, open).await?;
    listeners.add(Port::Envd, &config.envd).await?;
    listeners.add(Port::Interpreter, &config.interpreter).await?;
    for (port, address) in listeners.addresses() {
        match port {
            Port::Main => tracing::info!(%address, "Listening"),
            port => tracing::info!(%address, ?port, "Listening"),
        }
    }
    tokio::spawn(release_when_idle(Arc::clone(&app.activity)));
    let stop = CancellationToken::new();
    let server = tokio::spawn(serve(
        listeners,
        Arc::clone(&app),
        config.http_idle_timeout,
        stop.clone(),
        config.shutdown_timeout,
    ));
    let command = start_command(&config, &app, &reaper)?;
    let code = signals.wait_for_shutdown(command.as_ref(), config.keep_running).await;
    app.stopping.store(true, Ordering::Relaxed);
    end_commands(&reaper, config.kill_grace).await;
    stop.cancel();
    let _ = tokio::time::timeout(config.shutdown_timeout, server).await;
    app.runtime.sandbox.history.save();
    for path in &config.unix {
        let _ = std::fs::remove_file(path);
    }
    // If a stop signal arrived while the command ran, its own exit status is more useful.
    let ended = command.and_then(|child| child.exit()).map(|exit| exit.shell_code());
    Ok(code.or(ended).map_or(0, |code| u8::try_from(code).unwrap_or(1)))
}

/// The configured working directory, or the first default one that exists.
fn base_directory(config: &Config) -> PathBuf {
    let usual: &[&str] = if config.mode == Mode::Strict { &["/app"] } else { &["/home/user", "/app"] };
    config.base_dir.clone().unwrap_or_else(|| {
        let found = usual.iter().map(Path::new).find(|path| path.is_dir());
        found.map_or_else(|| std::env::current_dir().unwrap_or_else(|_| "/".into()), Path::to_path_buf)
    })
}

/// Starts the container's own command, which inherits the daemon's standard streams and working directory.
fn start_command(config: &Config, app: &App, reaper: &Reaper) -> Result<Option<Child>, RunError> {
    if config.command.is_empty() {
        return Ok(None);
    }
    let here: OwnedFd = rustix::fs::open(
        c".",
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(std::io::Error::from)?;
    let mut env = (*app.runtime.sandbox.env).clone();
    if let Ok(cwd) = std::env::current_dir() {
        env.set("PWD", cwd);
    }
    let launch = Launch {
        argv: config.command.clone(),
        env: Arc::new(env),
        cwd: Arc::new(here),
        stdin: Stdin::Null,
        terminal: None,
        identity: None,
        rlimits: Vec::new(),
    };
    Ok(Some(launch.start_inheriting(reaper)?))
}

/// The signals that the daemon handles.
struct Signals {
    stop: [tokio::signal::unix::Signal; 2],
    forwarded: [(Signal, tokio::signal::unix::Signal); 4],
}

impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            stop: [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?],
            forwarded: [
                (Signal::HUP, signal(SignalKind::hangup())?),
                (Signal::QUIT, signal(SignalKind::quit())?),
                (Signal::USR1, signal(SignalKind::user_defined1())?),
                (Signal::USR2, signal(SignalKind::user_defined2())?),
            ],
        })
    }

    /// Waits for a stop signal or the end of the command; returns the command's exit status in the second case. Other
    /// signals are forwarded to the command, as if it were PID 1 itself.
    async fn wait_for_shutdown(&mut self, command: Option<&Child>, keep_running: bool) -> Option<i32> {
        let mut ended = false;
        loop {
            let end = async {
                match command {
                    Some(child) if !ended => child.wait().await,
                    _ => std::future::pending().await,
                }
            };
            let [terminate, interrupt] = &mut self.stop;
            let [one, two, three, four] = &mut self.forwarded;
            let forwarded = tokio::select! {
                _ = terminate.recv() => return None,
                _ = interrupt.recv() => return None,
                _ = one.1.recv() => one.0,
                _ = two.1.recv() => two.0,
                _ = three.1.recv() => three.0,
                _ = four.1.recv() => four.0,
                exit = end => {
                    let code = exit.shell_code();
                    tracing::info!(code, "Command ended");
                    if !keep_running {
                        return Some(code);
                    }
                    ended = true;
                    continue;
                }
            };
            if let Some(child) = command {
                child.signal(forwarded);
            }
        }
    }
}

/// SIGTERM to every command, and SIGKILL after the grace period.
async fn end_commands(reaper: &Reaper, grace: Duration) {
    reaper.signal_all(Signal::TERM);
    if tokio::time::timeout(grace, reaper.all_ended()).await.is_err() {
        reaper.signal_all(Signal::KILL);
        let _ = tokio::time::timeout(Duration::from_secs(2), reaper.all_ended()).await;
    }
}
