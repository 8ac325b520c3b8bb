//! `up --detach`: starts the engine as a background process with its output in a log file.

use agent_sandbox_engine::{DataDir, RunningEngine};
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    os::unix::fs::OpenOptionsExt as _,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Timeout for the engine's start. An engine with many thousand objects starts within seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the engine in the background and returns once it is ready.
pub(crate) async fn start(data: &DataDir) -> Result<RunningEngine> {
    let path = data.log();
    let log = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
    let log = log.with_context(|| format!("cannot write {}", path.display()))?;
    let log_start = log.metadata()?.len();
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    command
        // All arguments of this process, so that no flag can be left out.
        .args(std::env::args_os().skip(1))
        .arg("--in-background")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    // Ctrl-C in this terminal must not reach the engine.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().context("cannot start the engine")?;
    let running = wait_ready(data, &mut child, log_start).await?;
    // The engine's messages for the user went into its log: print them here.
    for line in log_since(data, log_start)
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("note: ") || line.starts_with("warning: "))
    {
        eprintln!("{line}");
    }
    Ok(running)
}

async fn wait_ready(data: &DataDir, child: &mut Child, log_start: u64) -> Result<RunningEngine> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        if let Some(running) = data.running().filter(|running| running.pid == child.id()) {
            return Ok(running);
        }
        if let Some(status) = child.try_wait()? {
            bail!("the engine stopped at once ({status}):\n{}", log_since(data, log_start));
        }
        if Instant::now() > deadline {
            child.kill()?;
            bail!("the engine was not ready after {} s:\n{}", START_TIMEOUT.as_secs(), log_since(data, log_start));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The part of the engine's log from this offset on, indented.
fn log_since(data: &DataDir, start: u64) -> String {
    let text = fs::read(data.log()).unwrap_or_default();
    let new = text.get(usize::try_from(start).unwrap_or_default()..).unwrap_or_default();
    String::from_utf8_lossy(new).lines().map(|line| format!("  {line}\n")).collect()
}
