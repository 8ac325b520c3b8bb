//! Audit records of requests through the router: commands with their arguments, changes to files, use of other ports,
//! and refusals.
//!
//! What a request does is known from its method and path, and for commands and uploads from the beginning of its body,
//! which is copied while it passes. Reads of files and states are not recorded.

mod operation;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_sandbox_protocol::router_headers::SandboxRequest;
use agent_sandbox_telemetry::audit::{Action, AuditLog, Decision, Record, Source};
use http::{Method, Request, Uri};
use parking_lot::Mutex;

use crate::auth::Identity;
#[cfg(any(test, fuzzing))]
pub(crate) use operation::fuzz as fuzz_operation;
use operation::{BodyFormat, Dialect, Operation};

/// Number of bytes of a body that are kept to find the command or the file name in.
const MAX_CAPTURED: usize = 16 * 1024;
/// Time for which further requests to the same port by the same caller are not recorded.
const PORT_INTERVAL: Duration = Duration::from_secs(60);
/// Number of (caller, sandbox, port) that are remembered. When there are more, records are repeated earlier.
const MAX_REMEMBERED_PORTS: usize = 4096;

/// Resource that the records name.
const SANDBOXES: &str = "sandboxes.agents.x-k8s.io";
/// Resource of records about links to ports.
const LINKS: &str = "sandboxes.agents.x-k8s.io/links";

#[derive(PartialEq, Eq, Hash)]
struct PortUse {
    user: String,
    client: String,
    namespace: String,
    sandbox: String,
    port: u16,
}

/// Writes the records of one router.
pub(crate) struct RouterAudit {
    log: AuditLog,
    ports: Mutex<HashMap<PortUse, Instant>>,
}

impl RouterAudit {
    pub(crate) fn new(log: AuditLog) -> Arc<Self> {
        Arc::new(Self { log, ports: Mutex::default() })
    }

    /// Whether a use of a port is the first one of its caller within the interval.
    fn is_new_port_use(&self, record: &Record) -> bool {
        let used = PortUse {
            user: record.user.clone(),
            client: record.client.clone(),
            namespace: record.namespace.clone(),
            sandbox: record.name.clone(),
            port: record.port.unwrap_or_default(),
        };
        let now = Instant::now();
        let mut ports = self.ports.lock();
        if ports.get(&used).is_some_and(|since| now.duration_since(*since) < PORT_INTERVAL) {
            return false;
        }
        if ports.len() >= MAX_REMEMBERED_PORTS {
            ports.retain(|_, since| now.duration_since(*since) < PORT_INTERVAL);
        }
        if ports.len() < MAX_REMEMBERED_PORTS {
            ports.insert(used, now);
        }
        true
    }
}

/// The record of one request, shared by everything that learns a part of it.
#[derive(Clone)]
pub(crate) struct PendingRecord(Arc<Mutex<Pending>>);

struct Pending {
    audit: Arc<RouterAudit>,
    record: Record,
    /// Method and address, as the sandbox sees them once they are known.
    head: (Method, Uri),
    operation: Operation,
    captured: Vec<u8>,
    /// Whether the body has more bytes than were captured.
    is_cut: bool,
    written: bool,
}

impl PendingRecord {
    pub(crate) fn begin<B>(audit: &Arc<RouterAudit>, client: &str, request: &Request<B>) -> Self {
        let mut record = Record::new(Source::Router, Action::Other, Decision::Allow, 0);
        record.client = client.to_owned();
        record.request = format!("{} {}", request.method(), request.uri().path());
        let head = (request.method().clone(), request.uri().clone());
        Self(Arc::new(Mutex::new(Pending {
            audit: Arc::clone(audit),
            record,
            operation: Operation::of(&head.0, &head.1, Dialect::default()),
            head,
            captured: Vec::new(),
            is_cut: false,
            written: false,
        })))
    }

    pub(crate) fn set_caller(&self, identity: &Identity) {
        let mut pending = self.0.lock();
        pending.record.user = match identity {
            Identity::Unrestricted => String::new(),
            Identity::Scoped(_) => "scoped-token".to_owned(),
            Identity::Link(link) => format!("link:{}", link.id),
            Identity::User(caller) => caller.user.clone(),
        };
    }

    /// The request creates or revokes a link, for a sandbox that is already recorded.
    pub(crate) fn set_link(&self, action: Action) {
        self.0.lock().operation = Operation::Link(action);
    }

    pub(crate) fn set_sandbox(&self, sandbox: &SandboxRequest) {
        self.set_target(sandbox.namespace.as_str(), sandbox.id.as_str(), sandbox.port);
    }

    /// Sets the sandbox and its port that the request is for.
    pub(crate) fn set_target(&self, namespace: &str, name: &str, port: u16) {
        let mut pending = self.0.lock();
        pending.record.resource = SANDBOXES.to_owned();
        pending.record.namespace = namespace.to_owned();
        pending.record.name = name.to_owned();
        pending.record.port = Some(port);
        pending.set_operation();
    }

    /// Sets the request as the sandbox sees it: a path that names the sandbox is removed from it.
    pub(crate) fn set_request<B>(&self, request: &Request<B>) {
        let mut pending = self.0.lock();
        pending.head = (request.method().clone(), request.uri().clone());
        pending.set_operation();
    }

    /// Takes bytes that the client sends. The first message of a command over a WebSocket completes its record.
    pub(crate) fn capture(&self, bytes: &[u8]) {
        let mut pending = self.0.lock();
        if pending.written || !pending.operation.is_in_body() {
            return;
        }
        let room = MAX_CAPTURED - pending.captured.len();
        pending.captured.extend_from_slice(&bytes[..bytes.len().min(room)]);
        pending.is_cut |= bytes.len() > room;
        let complete = matches!(pending.operation, Operation::Exec(BodyFormat::WebSocket))
            && pending.record.status != 0
            && (operation::first_message(&pending.captured).is_some() || pending.captured.len() == MAX_CAPTURED);
        if complete {
            pending.write();
        }
    }

    /// The response's head is known. A command over a WebSocket is written when its first message has arrived.
    pub(crate) fn responded(&self, status: u16) {
        let mut pending = self.0.lock();
        pending.record.status = status;
        let waits = status == 101 && matches!(pending.operation, Operation::Exec(BodyFormat::WebSocket));
        if !waits {
            pending.write();
        }
    }

    /// The router refused the request or could not serve it.
    pub(crate) fn failed(&self, status: u16, reason: &str) {
        let mut pending = self.0.lock();
        pending.record.status = status;
        pending.record.reason = reason.to_owned();
        if matches!(status, 401 | 403 | 421) {
            pending.record.decision = Decision::Deny;
        }
        pending.write();
    }

    /// The request ended; `status` counts if nothing was written before.
    pub(crate) fn ended(&self, status: u16) {
        let mut pending = self.0.lock();
        if pending.record.status == 0 {
            pending.record.status = status;
        }
        pending.write();
    }
}

impl Pending {
    fn set_operation(&mut self) {
        let dialect = self.record.port.map_or(Some(Dialect::default()), Dialect::at);
        self.operation = match dialect {
            Some(dialect) => Operation::of(&self.head.0, &self.head.1, dialect),
            None => Operation::Port,
        };
    }

    fn write(&mut self) {
        if self.written {
            return;
        }
        self.written = true;
        let record = &mut self.record;
        match std::mem::take(&mut self.operation) {
            Operation::Exec(format) => {
                record.action = Action::Exec;
                match format.arguments(&self.captured) {
                    Some(arguments) => record.argv = arguments,
                    None => lacks(record, "command", &self.captured, self.is_cut),
                }
            }
            Operation::WriteFile(path) => {
                record.action = Action::WriteFile;
                match path.find(&self.captured) {
                    Some(path) => record.path = path,
                    None => lacks(record, "path", &self.captured, self.is_cut),
                }
            }
            Operation::Port => record.action = Action::Port,
            Operation::Link(action) => {
                record.action = action;
                record.resource = LINKS.to_owned();
                record.port = None;
            }
            Operation::Read => record.action = Action::Other,
        }
        let denied = record.decision == Decision::Deny;
        let repeated = record.action == Action::Port && !denied && !self.audit.is_new_port_use(record);
        let unrecorded = record.action == Action::Other && !denied;
        if !repeated && !unrecorded {
            self.audit.log.write(record.clone());
        }
        self.captured = Vec::new();
    }
}

/// Notes why a record lacks the command or path. Without any captured byte nothing was sent to the sandbox.
fn lacks(record: &mut Record, what: &str, captured: &[u8], is_cut: bool) {
    if captured.is_empty() {
        return;
    }
    let why = if is_cut {
        format!("the body is larger than {MAX_CAPTURED} bytes")
    } else {
        "it was not found in the body".to_owned()
    };
    if !record.reason.is_empty() {
        record.reason.push_str("; ");
    }
    record.reason.push_str(&format!("the {what} is not recorded: {why}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_without_its_command_says_why() {
        let note = |reason: &str, captured: &[u8], is_cut: bool| {
            let mut record = Record::new(Source::Router, Action::Exec, Decision::Allow, 200);
            record.reason = reason.to_owned();
            lacks(&mut record, "command", captured, is_cut);
            record.reason
        };
        assert_eq!(note("", b"{", true), "the command is not recorded: the body is larger than 16384 bytes");
        assert_eq!(note("late", b"{", false), "late; the command is not recorded: it was not found in the body");
        assert_eq!(note("", b"", false), "");
    }
}
