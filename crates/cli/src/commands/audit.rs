//! `audit`: who did what to which sandbox, from the log that the local engine writes.

use super::streams::until_output_closes;
use crate::{
    args::{AuditArgs, AuditFormat, GlobalArgs},
    output,
};
use agent_sandbox_engine::DataDir;
use agent_sandbox_telemetry::audit::{self, Decision, Follow, Record};
use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use std::{process::ExitCode, time::Duration};

/// Time between looks at the log while it is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) async fn audit(global: &GlobalArgs, args: AuditArgs) -> Result<ExitCode> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let path = data.audit_log();
    if !path.exists() && data.running().is_none() {
        bail!(
            "there is no audit log in {}: an engine that was started with `agent-sandbox up` writes it",
            data.path().display()
        );
    }
    let filter = Filter::new(global, &args)?;
    if !args.follow {
        for record in audit::read(&path)? {
            print(&filter, args.output, &record?)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    for record in audit::read_rotated(&path)? {
        print(&filter, args.output, &record?)?;
    }
    let mut follow = Follow::begin(&path).context("cannot follow the audit log")?;
    until_output_closes(async {
        loop {
            for record in follow.next_records().context("cannot follow the audit log")? {
                print(&filter, args.output, &record)?;
            }
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
    })
    .await
}

fn print(filter: &Filter, format: AuditFormat, record: &Record) -> Result<()> {
    if !filter.matches(record) {
        return Ok(());
    }
    match format {
        AuditFormat::Text => output::print(&line(record)),
        AuditFormat::Json => output::print(&format!("{}\n", serde_json::to_string(record)?)),
    }
}

/// Which records are printed.
struct Filter {
    namespace: Option<String>,
    name: Option<String>,
    user: Option<String>,
    denied: bool,
    since: Option<Timestamp>,
}

impl Filter {
    fn new(global: &GlobalArgs, args: &AuditArgs) -> Result<Self> {
        let since = args.since.map(|age| Timestamp::now().checked_sub(age)).transpose();
        Ok(Self {
            namespace: global.namespace.clone(),
            name: args.name.clone(),
            user: args.user.clone(),
            denied: args.denied,
            since: since.context("--since reaches too far back")?,
        })
    }

    fn matches(&self, record: &Record) -> bool {
        let is = |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|wanted| wanted == value);
        is(&self.namespace, &record.namespace)
            && is(&self.name, &record.name)
            && is(&self.user, &record.user)
            && (!self.denied || record.decision == Decision::Deny)
            && self.since.is_none_or(|since| record.time >= since)
    }
}

/// `2026-01-02T03:04:05Z  alice  exec  default/box  200  ls -l`
fn line(record: &Record) -> String {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let action = serde_json::to_value(record.action).ok().and_then(|action| action.as_str().map(str::to_owned));
    let mut object = or_dash(&record.name);
    if !record.namespace.is_empty() {
        object = format!("{}/{object}", record.namespace);
    }
    if !record.resource.is_empty() {
        let resource = record.resource.split_once('.').map_or(record.resource.as_str(), |(plural, _)| plural);
        object = format!("{resource} {object}");
    }
    let mut details = Vec::new();
    details.extend(record.port.map(|port| format!("port {port}")));
    details.extend((!record.path.is_empty()).then(|| record.path.clone()));
    details.extend((!record.argv.is_empty()).then(|| record.argv.join(" ")));
    details.extend((!record.reason.is_empty()).then(|| format!("({})", record.reason)));
    let decision = if record.decision == Decision::Deny { "denied" } else { "ok" };
    let fields = [
        record.time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        or_dash(&record.user),
        action.unwrap_or_default(),
        object,
        format!("{decision} {}", record.status),
        details.join(" "),
    ];
    // A sandbox or a caller chooses some of these texts: they must not control the terminal.
    let text: String = fields.join("  ").chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_sandbox_telemetry::audit::{Action, Source};

    #[test]
    fn a_record_is_one_line_without_control_characters() {
        let mut record = Record::new(Source::Router, Action::Exec, Decision::Allow, 200);
        record.time = "2026-01-02T03:04:05.6Z".parse().unwrap();
        record.user = "alice".to_owned();
        record.resource = "sandboxes.agents.x-k8s.io".to_owned();
        (record.namespace, record.name) = ("default".to_owned(), "box".to_owned());
        record.argv = vec!["echo".to_owned(), "\u{1b}[2J\n".to_owned()];
        record.port = Some(8888);
        assert_eq!(
            line(&record),
            "2026-01-02T03:04:05Z  alice  exec  sandboxes default/box  ok 200  port 8888 echo \u{fffd}[2J\u{fffd}\n"
        );
    }
}
