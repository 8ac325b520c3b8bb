//! The audit log: who did what to which sandbox. The API server, the router and the controller write records of one
//! shape, a JSON object per line, without waiting for the disk.

mod read;
mod redact;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::line_writer::LineWriter;
use crate::rotating_file::RotatingFile;
pub use read::{Follow, ReadError, read, read_rotated};
pub use redact::{Redaction, RuleError};

/// Size at which the file is rotated.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Number of rotated files that are kept.
const KEPT: u32 = 7;

/// How long the end of a process waits for the last records.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The component that wrote a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Api,
    Router,
    Controller,
}

/// What was done, or attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// A command in a sandbox, by the Kubernetes API or by the sandbox's own API.
    Exec,
    Attach,
    PortForward,
    /// A change to files of a sandbox.
    WriteFile,
    /// Requests to a port of a sandbox; one record per caller, sandbox, port and minute.
    Port,
    /// A token of a ServiceAccount was ended.
    RevokeToken,
    /// The administrator's token was replaced.
    RotateToken,
    /// Anything else; recorded only when it is refused.
    Other,
}

/// Whether the request was permitted. A permitted request can still fail: `status` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    Allow,
    Deny,
}

/// One line of the log. Members that are empty are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub time: Timestamp,
    pub source: Source,
    /// The user that the request acted as: the authenticated one or, with impersonation, the impersonated one. Empty
    /// for callers without an identity.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The authenticated user, if the request acted as another one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub impersonator: String,
    /// Address of the client.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
    pub action: Action,
    pub decision: Decision,
    /// HTTP status of the response; 101 for streams.
    pub status: u16,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Plural name of the resource with its group, such as `sandboxes.agents.x-k8s.io`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Name of the object; for the router, of the Sandbox.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// The file that was written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Method and path of the HTTP request, without its query.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl Record {
    /// A record of now, with the fields that every record has.
    pub fn new(source: Source, action: Action, decision: Decision, status: u16) -> Self {
        Self {
            time: Timestamp::now(),
            source,
            user: String::new(),
            impersonator: String::new(),
            client: String::new(),
            action,
            decision,
            status,
            namespace: String::new(),
            resource: String::new(),
            name: String::new(),
            argv: Vec::new(),
            path: String::new(),
            port: None,
            request: String::new(),
            reason: String::new(),
        }
    }
}

/// Takes the records of all components of a process. Cheap to clone.
#[derive(Clone)]
pub struct AuditLog {
    lines: Arc<LineWriter>,
    redaction: Arc<Redaction>,
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuditLog")
    }
}

impl AuditLog {
    pub fn to_sink(sink: Box<dyn Write + Send>, redaction: Redaction) -> std::io::Result<Self> {
        Ok(Self { lines: Arc::new(LineWriter::start("audit-log", sink)?), redaction: Arc::new(redaction) })
    }

    /// Redacts the record and queues it.
    pub fn write(&self, mut record: Record) {
        self.redaction.apply(&mut record);
        match serde_json::to_string(&record) {
            Ok(mut line) => {
                line.push('\n');
                self.lines.write(&line);
            }
            Err(error) => tracing::warn!(%error, "Cannot encode an audit record"),
        }
    }

    /// Waits until the records so far are written, before a process ends. A disk that does not take them delays the end
    /// by [`FLUSH_TIMEOUT`].
    pub async fn flush(&self) {
        let lines = Arc::clone(&self.lines);
        let flushed = tokio::task::spawn_blocking(move || lines.flush(FLUSH_TIMEOUT)).await;
        if !matches!(flushed, Ok(true)) {
            tracing::warn!("The last audit records are lost: the log could not be written in time");
        }
    }
}

/// Where records go and what is removed from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// `-` for standard output, or the path of a file.
    pub target: String,
    /// A file with regular expressions, one per line; empty lines and lines that begin with `#` are skipped.
    pub redaction_file: Option<PathBuf>,
}

/// Why the audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read the redaction rules in {path}")]
    ReadRules { path: PathBuf, source: std::io::Error },
    #[error("line {line} of {path} is not a redaction rule")]
    Rule { path: PathBuf, line: usize, source: RuleError },
    #[error("cannot write the audit log to {target}")]
    Open { target: String, source: std::io::Error },
}

impl AuditConfig {
    pub fn open(&self) -> Result<AuditLog, OpenError> {
        let redaction = self.redaction_file.as_deref().map(read_rules).transpose()?.unwrap_or_default();
        let opened = match self.target.as_str() {
            "-" => AuditLog::to_sink(Box::new(std::io::stdout()), redaction),
            path => RotatingFile::open(Path::new(path), MAX_BYTES, KEPT)
                .and_then(|file| AuditLog::to_sink(Box::new(file), redaction)),
        };
        opened.map_err(|source| OpenError::Open { target: self.target.clone(), source })
    }
}

fn read_rules(path: &Path) -> Result<Redaction, OpenError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| OpenError::ReadRules { path: path.to_owned(), source })?;
    let mut redaction = Redaction::default();
    for (index, rule) in text.lines().map(str::trim).enumerate() {
        if !rule.is_empty() && !rule.starts_with('#') {
            let wrong = |source| OpenError::Rule { path: path.to_owned(), line: index + 1, source };
            redaction.add_rule(rule).map_err(wrong)?;
        }
    }
    Ok(redaction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_one_line_each_and_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let rules = folder.path().join("rules");
        std::fs::write(&rules, "# tickets\n(ticket )\\d+\n").unwrap();
        let config = AuditConfig { target: path.display().to_string(), redaction_file: Some(rules.clone()) };
        let log = config.open().unwrap();
        let mut record = Record::new(Source::Router, Action::Exec, Decision::Allow, 200);
        record.argv = vec!["sh".to_owned(), "-c".to_owned(), "printf 'a\nb' --token=hush ticket 17".to_owned()];
        record.user = "alice".to_owned();
        log.write(record.clone());
        log.write(Record::new(Source::Api, Action::Other, Decision::Deny, 403));
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(!text.contains("hush"));
        let found: Vec<Record> = read(&path).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(found[0].argv, ["sh", "-c", "printf 'a\nb' --token=[redacted] ticket [redacted]"]);
        std::fs::write(&rules, "\n(\n").unwrap();
        let error = config.open().unwrap_err().to_string();
        assert!(error.starts_with("line 2 of ") && error.ends_with("is not a redaction rule"), "{error}");
        assert_eq!((found[0].user.as_str(), found[1].decision), ("alice", Decision::Deny));
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
