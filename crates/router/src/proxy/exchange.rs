//! One request from its arrival to the last byte of the response: holds its slots in the limits, and records metrics
//! and the log line at the end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use agent_sandbox_protocol::link_token::LinkClaims;
use agent_sandbox_protocol::native::{DAEMON_PORT, PORTS_PATH};
use agent_sandbox_protocol::router_headers::SandboxRequest;
use futures::FutureExt as _;
use http::header::{HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Method, Request, Version};

use crate::auth::Identity;
use crate::auth::admission::Admission;
use crate::error::{RouterError, UpstreamReason};
use crate::links::{LinkError, Links};
use crate::observability::access_log::Line;
use crate::observability::audit::PendingRecord;
use crate::observability::metrics::MethodLabel;
use crate::observability::trace::TraceContext;
use crate::resolve::index::LivePod;
use crate::server::client_connection::ClientConnection;
use crate::sleep::{ActivityGuard, NotBegun};
use crate::state::Worker;

/// Status recorded if the client disconnected before there was a response (as nginx does).
const CLIENT_CLOSED: u16 = 499;

/// State of one request. Metrics, span and log line are written when it is dropped.
pub(crate) struct Exchange {
    worker: Arc<Worker>,
    client: Arc<ClientConnection>,
    /// The router is at its limit of concurrent requests.
    pub(crate) overload: bool,
    started: Instant,
    method: MethodLabel,
    pub(crate) version: Version,
    status: u16,
    bytes_out: u64,
    /// Namespace label: existing namespaces only, so that clients cannot create series.
    namespace: Option<Arc<str>>,
    path: Option<PathAndQuery>,
    sandbox: Option<SandboxRequest>,
    /// The sandbox's id as E2B's clients know it, if one of them sent the request.
    pub(crate) e2b_id: Option<String>,
    /// The request is one of E2B's for health or metrics.
    pub(crate) asks_e2b_state: bool,
    log: Option<LogFields>,
    audit: Option<PendingRecord>,
    pub(crate) trace: TraceContext,
    sandbox_slot: Option<Arc<LivePod>>,
    /// The use of a Sandbox with an idle time, which does not sleep before the response has ended.
    activity: Option<ActivityGuard>,
    /// The link that the caller came with.
    link: Option<Arc<LinkClaims>>,
    /// The other credential that the caller came with, if it can end.
    admission: Option<Arc<Admission>>,
}

/// Completes when a credential has ended, with the reason.
pub(crate) type CredentialEnd = Pin<Box<dyn Future<Output = RouterError> + Send>>;

struct LogFields {
    method: Method,
    user_agent: Option<HeaderValue>,
}

impl Exchange {
    pub(crate) fn begin<B>(worker: &Arc<Worker>, client: &Arc<ClientConnection>, request: &Request<B>) -> Box<Self> {
        let shared = &worker.shared;
        shared.metrics.in_flight.inc();
        client.request_begins();
        let before = shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let limit = shared.config.limits.in_flight_requests;
        let log = worker.log.is_some().then(|| LogFields {
            method: request.method().clone(),
            user_agent: request.headers().get(USER_AGENT).cloned(),
        });
        let peer = client.inbound.peer.to_str().unwrap_or_default();
        let audit = shared.audit.as_ref().map(|audit| PendingRecord::begin(audit, peer, request));
        Box::new(Self {
            worker: Arc::clone(worker),
            client: Arc::clone(client),
            overload: limit > 0 && before >= limit,
            started: Instant::now(),
            method: MethodLabel::from(request.method()),
            version: request.version(),
            status: CLIENT_CLOSED,
            bytes_out: 0,
            namespace: None,
            path: request.uri().path_and_query().cloned(),
            sandbox: None,
            e2b_id: None,
            asks_e2b_state: false,
            log,
            audit,
            trace: TraceContext::begin(request.headers(), shared.traces.is_some()),
            sandbox_slot: None,
            activity: None,
            link: None,
            admission: None,
        })
    }

    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Records the sandbox that the request names, once its headers are valid.
    pub(crate) fn set_sandbox(&mut self, sandbox: &SandboxRequest) {
        self.namespace = self.worker.shared.namespace_label(sandbox.namespace.as_str());
        self.sandbox = Some(sandbox.clone());
        if let Some(audit) = &self.audit {
            audit.set_sandbox(sandbox);
        }
    }

    /// Records who makes the request.
    pub(crate) fn set_caller(&self, identity: &Identity) {
        if let Some(audit) = &self.audit {
            audit.set_caller(identity);
        }
    }

    /// Records the link that the caller came with.
    pub(crate) fn set_link(&mut self, link: Arc<LinkClaims>) {
        self.link = Some(link);
    }

    pub(crate) fn link(&self) -> Option<&Arc<LinkClaims>> {
        self.link.as_ref()
    }

    /// Records the credential, other than a link, that the caller came with.
    pub(crate) fn set_admission(&mut self, admission: Admission) {
        self.admission = Some(Arc::new(admission));
    }

    /// The end of the caller's credential, with which everything that it opened ends; `None` for one that does not end.
    pub(crate) fn credential_end(&self) -> Option<CredentialEnd> {
        let shared = &self.worker.shared;
        if let (Some(links), Some(link)) = (&shared.links, &self.link) {
            let ended = Links::ended(Arc::clone(links), Arc::clone(link));
            return Some(Box::pin(ended.map(|()| LinkError::Ended.into())));
        }
        let (shared, admission) = (Arc::clone(shared), Arc::clone(self.admission.as_ref()?));
        Some(Box::pin(async move { shared.authorizer.ended(&admission).await }))
    }

    /// The request's audit record, if requests are audited.
    pub(crate) fn audit(&self) -> Option<&PendingRecord> {
        self.audit.as_ref()
    }

    /// Counts the request against its sandbox; `false` if the sandbox is at its limit.
    pub(crate) fn acquire_sandbox_slot(&mut self, pod: &Arc<LivePod>) -> bool {
        if self.sandbox_slot.is_some() {
            return true;
        }
        let limit = self.worker.shared.config.limits.requests_per_sandbox;
        let before = pod.in_flight.fetch_add(1, Ordering::Relaxed);
        if limit > 0 && before >= limit {
            pod.in_flight.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.sandbox_slot = Some(Arc::clone(pod));
        true
    }

    /// Counts the request as a use of its Sandbox, unless it only looks at it.
    pub(crate) async fn begin_activity(&mut self, pod: &Arc<LivePod>) -> Result<(), NotBegun> {
        let shared = &self.worker.shared;
        if self.looks_only() {
            return Ok(());
        }
        if let (Some(sleep), None) = (&shared.sleep, &self.activity) {
            self.activity = sleep.begin(&shared.index, pod).await?;
        }
        Ok(())
    }

    /// Whether the request asks an E2B sandbox for its state, or lists ports: who shows sandboxes asks all of them again
    /// and again, which is no use of them.
    pub(crate) fn looks_only(&self) -> bool {
        let lists_ports = self.method == MethodLabel::Get
            && self.sandbox.as_ref().is_some_and(|sandbox| sandbox.port == DAEMON_PORT)
            && self.path.as_ref().is_some_and(|path| path.path() == PORTS_PATH);
        self.asks_e2b_state || lists_ports
    }

    pub(crate) fn namespace(&self) -> Option<&Arc<str>> {
        self.namespace.as_ref()
    }

    pub(crate) fn set_status(&mut self, status: u16) {
        self.status = status;
        if let Some(audit) = &self.audit {
            audit.responded(status);
        }
    }

    pub(crate) fn add_bytes_out(&mut self, count: u64) {
        self.bytes_out += count;
    }

    /// The sandbox aborted its response after the head.
    pub(crate) fn record_upstream_abort(&mut self) {
        self.worker.shared.metrics.upstream_error(self.namespace.as_ref(), UpstreamReason::Eof);
    }

    pub(crate) fn record_error(&mut self, error: &RouterError) {
        self.status = error.status().as_u16();
        if let Some(audit) = &self.audit {
            audit.failed(self.status, &error.to_string());
        }
        if let Some(reason) = error.upstream_reason() {
            self.worker.shared.metrics.upstream_error(self.namespace.as_ref(), reason);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let shared = &self.worker.shared;
        if let Some(audit) = &self.audit {
            audit.ended(self.status);
        }
        self.client.request_ends();
        shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        shared.metrics.in_flight.dec();
        if let Some(pod) = self.sandbox_slot.take() {
            pod.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        let duration = self.started.elapsed();
        shared.metrics.request(&self.worker.recent, self.method, self.status, self.namespace.as_ref(), duration);
        let path = self.path.as_ref().map_or("", PathAndQuery::path);
        if let Some(traces) = &shared.traces {
            traces.finish(&self.trace, self.method, path, self.status, duration, self.sandbox.as_ref());
        }
        if let (Some(log), Some(sink)) = (&self.log, &self.worker.log) {
            sink.write(&Line {
                method: log.method.as_str(),
                path,
                status: self.status,
                duration,
                client_ip: self.client.inbound.peer.to_str().unwrap_or(""),
                sandbox_id: self.sandbox.as_ref().map_or("", |sandbox| sandbox.id.as_str()),
                sandbox_namespace: self.sandbox.as_ref().map_or("", |sandbox| sandbox.namespace.as_str()),
                bytes_out: self.bytes_out,
                user_agent: log.user_agent.as_ref().map_or(&[], HeaderValue::as_bytes),
                trace: &self.trace,
            });
        }
    }
}
