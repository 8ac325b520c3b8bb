//! Measures a controller on a real control plane with fake nodes, and compares it with a bare client that sends the
//! same writes.
//!
//! `bench/kubernetes/README.md` describes what is measured and how to read the results.

mod environment;
mod load;
mod objects;
mod parts;
mod replay;
mod report;
mod subject;

use std::{io::Write, path::PathBuf};

use clap::Parser;

use self::{report::Report, subject::Subject};

#[derive(Parser)]
struct Arguments {
    /// Our program.
    #[arg(long, env = "AGENT_SANDBOX_BIN", default_value = "target/release/agent-sandbox")]
    controller: PathBuf,
    /// Start command of another controller; `{kubeconfig}` and `{metrics}` (host:port) are filled in.
    #[arg(long)]
    peer: Option<String>,
    /// Only these parts: latency, hold, burst, sustained, cold, writes, size.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Numbers of Sandboxes for the part `size`.
    #[arg(long, value_delimiter = ',', default_value = "0,2000,10000")]
    sandboxes: Vec<usize>,
    /// Where to write the numbers; what is there of other parts is kept.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where to draw the chart.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::load(arguments.json.as_deref())?;
    runtime.block_on(run(&arguments, &mut report))?;
    report.store(arguments.json.as_deref(), arguments.svg.as_deref())
}

async fn run(arguments: &Arguments, report: &mut Report) -> anyhow::Result<()> {
    let mut subjects = vec![Subject::Replay, Subject::ours(&arguments.controller)];
    subjects.extend(arguments.peer.as_deref().map(Subject::peer));
    let wanted = |part: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == part);
    for subject in &subjects {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n== {}", subject.name())?;
        drop(out);
        if wanted("latency") {
            parts::latency(subject, report).await?;
        }
        if wanted("burst") {
            parts::burst(subject, report).await?;
        }
        if wanted("sustained") {
            parts::sustained(subject, report).await?;
        }
        if wanted("cold") {
            parts::cold(subject, report).await?;
        }
        if *subject == Subject::Replay {
            continue;
        }
        if wanted("hold") {
            parts::hold(subject, report).await?;
        }
        if wanted("writes") {
            parts::writes(subject, report).await?;
        }
        if wanted("size") {
            parts::size(subject, &arguments.sandboxes, report).await?;
        }
    }
    report.print()
}
