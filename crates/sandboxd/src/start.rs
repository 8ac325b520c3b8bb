//! From configuration to a serving daemon and back to an exit status, also as PID 1.

mod assemble;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{self, Config, ConfigError, Request};
use crate::files::FileError;
use crate::memory::give_back;
use crate::process::inherited;
use crate::process::launch::LaunchError;
use crate::process::reaper::{Child, block_signals};
use crate::process::{Launch, Reaper, Stdin};
use crate::runtime::Mode;
use crate::server::{App, Listeners, Token, serve};

const BLOCKING_THREADS: usize = 16;
/// For good: where processes are used up no thread can be started, and file calls must still find one.
const BLOCKING_THREADS_KEPT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const STACK: usize = 256 * 1024;

/// Why the daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot use directory {path:?}: {source}")]
    Directory { path: PathBuf, source: FileError },
    #[error("cannot read the token: {0}")]
    Token(std::io::Error),
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
    #[error("cannot start the command: {0}")]
    Command(#[from] LaunchError),
}

/// The program: reads arguments and environment, runs, and turns the outcome into an exit status.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let request = config::parse(arguments, |name| std::env::var(name).ok());
    let outcome = match request {
        Ok(Request::Help) => return print(config::USAGE),
        Ok(Request::Version) => return print(concat!("sandboxd ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Request::Run(config)) => run(*config),
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

/// Runs the daemon until it is told to stop or its command ends; returns the exit status. Takes over the process: call
/// it before anything else starts threads or children.
pub fn run(config: Config) -> Result<u8, RunError> {
    block_signals();
    inherited::keep_from_commands();
    // What we run must not read our memory or our descriptors.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(config.log_level).with_ansi(false).init();
    // One thread, and those for file calls: a sandbox is one agent's, and every further thread costs each start, and each command
    // the way from one processor to another.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(STACK)
        .thread_keep_alive(BLOCKING_THREADS_KEPT)
        .enable_all()
        .build()?;
    // The first of them, before anything else can use up the processes.
    drop(runtime.spawn_blocking(|| ()));
    let outcome = runtime.block_on(daemon(config));
    runtime.shutdown_background();
    outcome
}

async fn daemon(config: Config) -> Result<u8, RunError> {
    // Before anyone can see that we live: PID 1 without a handler ignores the signal that tells it to stop.
    let mut signals = Signals::install()?;
    let token = config.token.as_ref().map(Token::read).transpose().map_err(RunError::Token)?;
    let reaper = Reaper::start()?;
    let base = base_directory(&config);
    let app = Arc::new(assemble::app(&config, &base, &reaper, token)?);
    let open = inherited::listeners(config.handed_over);
    let listeners = Listeners::bind(&config.listen, &config.listen_if_free, &config.unix, open).await?;
    for address in listeners.addresses() {
        tracing::info!(%address, "Listening");
    }
    tokio::spawn(give_back(Arc::clone(&app.activity)));
    let stop = CancellationToken::new();
    let server = tokio::spawn(serve(
        listeners,
        Arc::clone(&app),
        config.http_idle_timeout,
        stop.clone(),
        config.shutdown_timeout,
    ));
    let command = start_command(&config, &app, &reaper)?;
    let code = signals.until_told_to_stop(command.as_ref(), config.keep_running).await;
    app.stopping.store(true, Ordering::Relaxed);
    end_commands(&reaper, config.kill_grace).await;
    stop.cancel();
    let _ = tokio::time::timeout(config.shutdown_timeout, server).await;
    for path in &config.unix {
        let _ = std::fs::remove_file(path);
    }
    // Told to stop while the command ran: its own answer to the signal is the better exit status.
    let ended = command.and_then(|child| child.exit()).map(|exit| exit.shell_code());
    Ok(code.or(ended).map_or(0, |code| u8::try_from(code).unwrap_or(1)))
}

/// The configured working directory, or the first usual one that exists.
fn base_directory(config: &Config) -> PathBuf {
    let usual: &[&str] = if config.mode == Mode::Strict { &["/app"] } else { &["/home/user", "/app"] };
    config.base_dir.clone().unwrap_or_else(|| {
        let found = usual.iter().map(Path::new).find(|path| path.is_dir());
        found.map_or_else(|| std::env::current_dir().unwrap_or_else(|_| "/".into()), Path::to_path_buf)
    })
}

/// Starts the container's own command, which keeps the daemon's standard streams and working directory.
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
    let mut env = (*app.runtime.env).clone();
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
        limits: Vec::new(),
    };
    Ok(Some(launch.start_inheriting(reaper)?))
}

/// The signals the daemon listens to.
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

    /// Waits for a stop signal or the command's end; `Some` is the command's status. Other signals go to the command,
    /// as if it were PID 1 itself.
    async fn until_told_to_stop(&mut self, command: Option<&Child>, keep_running: bool) -> Option<i32> {
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

/// SIGTERM to every command, SIGKILL after the grace.
async fn end_commands(reaper: &Reaper, grace: Duration) {
    reaper.signal_all(Signal::TERM);
    if tokio::time::timeout(grace, reaper.all_ended()).await.is_err() {
        reaper.signal_all(Signal::KILL);
        let _ = tokio::time::timeout(Duration::from_secs(2), reaper.all_ended()).await;
    }
}
