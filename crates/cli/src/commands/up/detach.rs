//! `up --detach`: the same program in a session of its own, with its output in a file.

use crate::data::{DataDir, Running};
use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    os::unix::fs::OpenOptionsExt as _,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Opening an engine with many thousand objects takes seconds, not a minute.
const READY: Duration = Duration::from_secs(60);

/// Starts the engine in the background and returns once it is ready.
pub(crate) async fn start(data: &DataDir) -> Result<Running> {
    let path = data.log();
    let log = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
    let log = log.with_context(|| format!("cannot write {}", path.display()))?;
    let from = log.metadata()?.len();
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    command
        // The same words again, so that no flag can be forgotten here.
        .args(std::env::args_os().skip(1))
        .arg("--in-background")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    // Ctrl-C in this terminal must not reach the engine.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().context("cannot start the engine")?;
    let running = wait_ready(data, &mut child, from).await?;
    // What the engine wants people to know went into its log.
    for line in said_since(data, from)
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("note: ") || line.starts_with("warning: "))
    {
        eprintln!("{line}");
    }
    Ok(running)
}

async fn wait_ready(data: &DataDir, child: &mut Child, log_from: u64) -> Result<Running> {
    let deadline = Instant::now() + READY;
    loop {
        if let Some(running) = data.running().filter(|running| running.pid == child.id()) {
            return Ok(running);
        }
        if let Some(status) = child.try_wait()? {
            bail!("the engine stopped at once ({status}):\n{}", said_since(data, log_from));
        }
        if Instant::now() > deadline {
            child.kill()?;
            bail!("the engine was not ready after {} s:\n{}", READY.as_secs(), said_since(data, log_from));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What the engine wrote into its log since it was started, indented.
fn said_since(data: &DataDir, from: u64) -> String {
    let text = fs::read(data.log()).unwrap_or_default();
    let new = text.get(usize::try_from(from).unwrap_or_default()..).unwrap_or_default();
    String::from_utf8_lossy(new).lines().map(|line| format!("  {line}\n")).collect()
}
