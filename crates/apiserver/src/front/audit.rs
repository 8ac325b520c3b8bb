//! Audit records of requests from the network: everything that changes an object, every stream into a Pod, and every
//! refusal. Reads that are permitted are not recorded. Requests of this process's own components are recorded if a
//! policy of the namespace says so. Revoked and replaced tokens are recorded too.

use agent_sandbox_telemetry::audit::{Action, AuditLog, Decision, Record, Source};
use http::{Method, StatusCode, Uri};

use super::auth::UserInfo;
use crate::request::{RequestInfo, ResourceRequest, Verb, query_pairs};

/// Name that the server gave to a new object (`generateName`), as an extension of the response.
#[derive(Clone)]
pub(crate) struct CreatedName(pub(crate) String);

/// What a policy of the namespace says about a new or changed object, as an extension of the response.
#[derive(Clone)]
pub(crate) struct PolicyReason(pub(crate) String);

/// What is recorded about a request, read before the request is handled.
pub(crate) struct AuditedRequest<'a> {
    log: &'a AuditLog,
    record: Record,
}

impl<'a> AuditedRequest<'a> {
    pub(crate) fn begin(log: &'a AuditLog, method: &Method, uri: &Uri) -> Self {
        let mut record = Record::new(Source::Api, Action::Other, Decision::Allow, 0);
        record.request = format!("{method} {}", uri.path());
        if let Ok(RequestInfo::Resource(wanted)) = RequestInfo::parse(method, uri) {
            record.action = action(&wanted);
            record.resource = resource_name(&wanted);
            record.namespace = wanted.namespace;
            record.name = wanted.name;
            match record.action {
                Action::Exec => record.argv = query_values(uri, "command").collect(),
                Action::PortForward => record.port = query_values(uri, "ports").find_map(|port| port.parse().ok()),
                _ => {}
            }
        }
        Self { log, record }
    }

    /// Sets the authenticated user. The record's user is this one unless the request acts as another.
    pub(crate) fn set_sender(&mut self, username: String) {
        self.record.user = username;
    }

    /// Writes the record of a request of a component of this process, if there is something to record.
    pub(crate) fn end_of_component<B>(self, user: &UserInfo, response: &http::Response<B>) {
        if response.extensions().get::<PolicyReason>().is_some() {
            self.end(Some(user), response);
        }
    }

    /// Writes the record if the request is of a kind that is recorded. `user` is the one that the request acted as;
    /// `None` if it was refused before that was decided.
    pub(crate) fn end<B>(mut self, user: Option<&UserInfo>, response: &http::Response<B>) {
        let status = response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            self.record.decision = Decision::Deny;
        } else if self.record.action == Action::Other {
            return;
        }
        self.record.status = status.as_u16();
        if let Some(user) = user {
            let sender = std::mem::replace(&mut self.record.user, user.username.clone());
            if sender != self.record.user {
                self.record.impersonator = sender;
            }
        }
        if let Some(CreatedName(name)) = response.extensions().get() {
            self.record.name.clone_from(name);
        }
        if let Some(PolicyReason(reason)) = response.extensions().get() {
            self.record.reason.clone_from(reason);
        }
        self.log.write(self.record);
    }
}

/// Writes what became of a change of tokens that the administrator asked for on the machine, not through the API.
pub(super) fn record_token_change<E: std::error::Error>(
    log: Option<&AuditLog>,
    action: Action,
    outcome: Result<&str, &E>,
) {
    let Some(log) = log else { return };
    let status = if outcome.is_ok() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let mut record = Record::new(Source::Api, action, Decision::Allow, status.as_u16());
    record.user = UserInfo::administrator().username;
    record.resource = "tokens".to_owned();
    match outcome {
        Ok(id) => record.name = id.to_owned(),
        Err(error) => record.reason = error.to_string(),
    }
    log.write(record);
}

fn action(request: &ResourceRequest) -> Action {
    match (request.subresource.as_str(), request.verb) {
        ("exec", _) => Action::Exec,
        ("attach", _) => Action::Attach,
        ("portforward", _) => Action::PortForward,
        // Components report state with these; they change nothing that belongs to a user.
        _ if matches!(request.resource.as_str(), "events" | "leases") || is_review(request) => Action::Other,
        (_, Verb::Create) => Action::Create,
        (_, Verb::Update) => Action::Update,
        (_, Verb::Patch) => Action::Patch,
        (_, Verb::Delete) => Action::Delete,
        (_, Verb::DeleteCollection) => Action::DeleteCollection,
        (_, Verb::Get | Verb::List | Verb::Watch) => Action::Other,
    }
}

/// Reviews are questions in the form of a `create`.
fn is_review(request: &ResourceRequest) -> bool {
    matches!(request.group.as_str(), "authorization.k8s.io" | "authentication.k8s.io")
}

/// `sandboxes.agents.x-k8s.io`, `pods`, `pods/exec`.
fn resource_name(request: &ResourceRequest) -> String {
    let mut name = request.resource.clone();
    if !request.group.is_empty() {
        name = format!("{name}.{}", request.group);
    }
    if !request.subresource.is_empty() {
        name = format!("{name}/{}", request.subresource);
    }
    name
}

fn query_values<'u>(uri: &'u Uri, key: &'u str) -> impl Iterator<Item = String> + use<'u> {
    query_pairs(uri).filter(move |(name, _)| name == key).map(|(_, value)| value)
}
