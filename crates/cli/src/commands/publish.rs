//! `create --publish`: a `port-forward` of this program in the background, with the rights of the user who asked for it.

use crate::args::{Forward, GlobalArgs};
use anyhow::{Context as _, Result, bail};
use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

/// Starts to forward ports to a sandbox and returns once they are open. The process ends with the sandbox.
pub(crate) async fn start(global: &GlobalArgs, name: &str, ports: &[Forward]) -> Result<()> {
    if ports.is_empty() {
        return Ok(());
    }
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    for (flag, value) in
        [("--kubeconfig", &global.kubeconfig), ("--context", &global.context), ("--namespace", &global.namespace)]
    {
        command.args(value.iter().flat_map(|value| [flag, value]));
    }
    if let Some(folder) = &global.data_dir {
        command.arg("--data-dir").arg(folder);
    }
    command.args(["port-forward", "--until-gone", name]);
    command.args(ports.iter().map(Forward::to_string));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C in this terminal must not reach it.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().context("cannot start to forward ports")?;
    let Some(said) = child.stderr.take() else { bail!("cannot read what the forwarding process says") };
    let opened = tokio::task::spawn_blocking({
        let count = ports.len();
        move || BufReader::new(said).lines().map_while(Result::ok).take(count).collect::<Vec<String>>()
    });
    let lines = opened.await.context("cannot read what the forwarding process says")?;
    for line in &lines {
        eprintln!("{line}");
    }
    if lines.len() < ports.len() || lines.iter().any(|line| !line.starts_with("forwarding ")) {
        let _ = child.kill();
        let _ = child.wait();
        bail!("sandbox {name} runs, but its ports are not published; try `agent-sandbox port-forward {name} PORT`");
    }
    Ok(())
}
