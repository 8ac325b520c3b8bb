//! The measured subjects: a controller process, or the bare writes.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context;

/// One column of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The bare client.
    Replay,
    Command {
        name: &'static str,
        words: Vec<String>,
    },
}

impl Subject {
    pub(crate) fn ours(program: &Path) -> Self {
        let words = [
            program.to_string_lossy().as_ref(),
            "controller",
            "--kubeconfig={kubeconfig}",
            "--extensions",
            "--leader-elect=false",
            "--enable-webhook=false",
            "--metrics-bind-address={metrics}",
            "--health-probe-bind-address=0",
        ]
        .map(str::to_owned);
        Self::Command { name: "agent-sandbox", words: words.to_vec() }
    }

    pub(crate) fn peer(command: &str) -> Self {
        Self::Command { name: "peer", words: command.split_whitespace().map(str::to_owned).collect() }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Command { name, .. } => name,
        }
    }

    /// Starts the process, if there is one.
    pub(crate) fn start(&self, kubeconfig: &Path, folder: &Path) -> anyhow::Result<Option<Process>> {
        let Self::Command { words, .. } = self else { return Ok(None) };
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let fill = |word: &String| {
            word.replace("{kubeconfig}", &kubeconfig.to_string_lossy())
                .replace("{metrics}", &format!("127.0.0.1:{port}"))
        };
        let words: Vec<String> = words.iter().map(fill).collect();
        let (program, arguments) = words.split_first().context("an empty command")?;
        let log = File::create(folder.join("controller.log"))?;
        let child = Command::new(program)
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        Ok(Some(Process(child)))
    }
}

/// A running controller process; dropping it ends it.
pub(crate) struct Process(Child);

impl Process {
    fn proc(&self, file: &str) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(format!("/proc/{}/{file}", self.0.id()))?)
    }

    /// Resident memory in MB (10^6 bytes).
    pub(crate) fn memory(&self) -> anyhow::Result<f64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024.0 / 1e6)
    }

    /// CPU time used so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = self.proc("stat")?;
        let fields: Vec<&str> = stat.rsplit_once(") ").context("no stat")?.1.split(' ').collect();
        let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        // The kernel reports hundredths of a second.
        Ok(Duration::from_millis(ticks * 10))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
