//! `history`: the commands that have ended in a sandbox, and what each one printed.

use super::objects::find_sandbox;
use crate::{
    args::HistoryArgs,
    cluster::ClusterClient,
    output::{self, visible},
};
use agent_sandbox_client::{self as sdk, Cluster, Connection, SandboxClient, SandboxHandle, history::Entry};
use anyhow::Result;
use kube::ResourceExt as _;
use std::io::{IsTerminal as _, Write as _};

/// Width of the command's column: one line of a terminal.
const COMMAND_WIDTH: usize = 80;

pub(crate) async fn history(cluster: &ClusterClient, args: HistoryArgs) -> Result<()> {
    let found = find_sandbox(cluster, &args.name).await?;
    sdk::running_pod(&cluster.client, &found.sandbox).await?;
    let client = SandboxClient::new(Cluster::of(cluster.client.clone()), Connection::PodTunnel);
    let sandbox = client.handle(&cluster.namespace, &found.sandbox.name_any(), None)?;
    match args.id {
        Some(id) => print_output(&sandbox, id, &args).await,
        None => {
            let entries = sandbox.history(args.tail).await?;
            let names = || entries.iter().map(|entry| format!("{}\n", entry.id)).collect();
            output::emit(args.output.output, &entries, names, || table(&entries))
        }
    }
}

/// Prints what is kept of a command's output to the streams that it wrote to.
async fn print_output(sandbox: &SandboxHandle, id: i32, args: &HistoryArgs) -> Result<()> {
    let entry = sandbox.history_entry(id).await?;
    // A program in the sandbox may have written the entry: the terminal must obey none of it.
    let shown = |text: &Option<String>, terminal: bool| match text.as_deref().unwrap_or_default() {
        text if terminal => visible(text),
        text => text.to_owned(),
    };
    let text = || shown(&entry.stdout, std::io::stdout().is_terminal());
    output::emit(args.output.output, &entry, || format!("{id}\n"), text)?;
    if args.output.output == Default::default() {
        std::io::stderr().write_all(shown(&entry.stderr, std::io::stderr().is_terminal()).as_bytes())?;
    }
    Ok(())
}

fn table(entries: &[Entry]) -> String {
    let mut table = output::Table::new(&["ID", "AGE", "TOOK", "EXIT", "COMMAND"]);
    let now = jiff::Timestamp::now();
    for entry in entries {
        let age = entry.started_at.parse::<jiff::Timestamp>().map(|at| output::age(now.as_second() - at.as_second()));
        table.row(vec![
            entry.id.to_string(),
            age.unwrap_or_default(),
            took(entry.duration_ms),
            entry.exit_code.to_string(),
            one_line(&entry.command_line()),
        ]);
    }
    table.render()
}

fn took(milliseconds: u64) -> String {
    match milliseconds {
        0..1000 => format!("{milliseconds}ms"),
        1000..60_000 => format!("{}.{}s", milliseconds / 1000, milliseconds % 1000 / 100),
        _ => output::age(i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX)),
    }
}

/// The beginning of a command, without characters that would move the cursor.
fn one_line(text: &str) -> String {
    let shown = text.chars().map(|character| if character.is_control() { ' ' } else { character });
    match text.chars().count() > COMMAND_WIDTH {
        true => shown.take(COMMAND_WIDTH - 1).chain(['…']).collect(),
        false => shown.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_commands_are_one_line() {
        assert_eq!((took(7), took(1250), took(61_000)), ("7ms".into(), "1.2s".into(), "61s".into()));
        assert_eq!(one_line("for x in a\ndo \x1b[2J; done"), "for x in a do  [2J; done");
        let long = one_line(&"ä".repeat(200));
        assert!(long.chars().count() == COMMAND_WIDTH && long.ends_with('…'));
    }
}
