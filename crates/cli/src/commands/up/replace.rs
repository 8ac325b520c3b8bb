//! `up --detach` beside an engine that a command started: such an engine ends when it is not used, and is replaced by one
//! that stays.

use agent_sandbox_engine::DataDir;
use anyhow::{Context as _, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use std::{
    fs::{self, File},
    os::fd::OwnedFd,
};

/// Timeout for the end of an engine that leaves its sandboxes running.
const END_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Whether an engine was told to end when it is not used.
pub(crate) fn ends_when_unused(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| has_idle_timeout(&line))
}

fn has_idle_timeout(command_line: &[u8]) -> bool {
    let mut words = command_line.split(|byte| *byte == 0);
    words.any(|word| word == b"--idle-timeout" || word.starts_with(b"--idle-timeout="))
}

/// Locks the data folder against commands that start an engine.
pub(crate) async fn lock(data: &DataDir) -> Result<File> {
    let locking = tokio::task::spawn_blocking({
        let data = data.clone();
        move || data.lock()
    });
    locking.await?.with_context(|| format!("cannot lock the data folder {}", data.path().display()))
}

/// Ends the running engine, and leaves its sandboxes running for the next one. Returns when its process has ended.
pub(crate) async fn end(data: &DataDir) -> Result<()> {
    let Some(running) = data.running() else { return Ok(()) };
    let failed = || format!("cannot end the engine that runs here (process {})", running.pid);
    let pid = i32::try_from(running.pid).ok().and_then(Pid::from_raw).with_context(failed)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).with_context(failed)?;
    // Another process may have had the pid when it was opened.
    if data.running().is_none_or(|still| still.start_ticks != running.start_ticks) {
        return Ok(());
    }
    pidfd_send_signal(&process, Signal::TERM).with_context(failed)?;
    if !tokio::task::spawn_blocking(move || has_ended(&process)).await?.with_context(failed)? {
        bail!("{} within {} s; see {}", failed(), END_TIMEOUT.tv_sec, data.log().display());
    }
    eprintln!(
        "note: the engine that ran here would have ended when unused; its sandboxes continue with one that stays"
    );
    Ok(())
}

/// Waits for the end of a process, for a limited time.
fn has_ended(process: &OwnedFd) -> rustix::io::Result<bool> {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    loop {
        match poll(&mut ends, Some(&END_TIMEOUT)) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => return Ok(outcome? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_a_command_started_has_an_idle_timeout() {
        assert!(has_idle_timeout(b"agent-sandbox\0up\0--detach\0--idle-timeout\x0015m\0--in-background\0"));
        assert!(has_idle_timeout(b"agent-sandbox\0up\0--idle-timeout=1h\0"));
        assert!(!has_idle_timeout(b"agent-sandbox\0up\0--detach\0--in-background\0"));
        assert!(!has_idle_timeout(b""));
    }
}
