//! One request from arrival to the last byte of its answer: limits held, numbers and log line when it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use agent_sandbox_protocol::router_headers::SandboxRequest;
use http::header::{HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Method, Request, Version};

use crate::access_log::Line;
use crate::client_side::ClientSide;
use crate::error::{RouterError, UpstreamReason};
use crate::index::LivePod;
use crate::metrics::MethodLabel;
use crate::trace::TraceContext;
use crate::worker::Worker;

/// Status recorded when the client left before there was one (nginx's convention).
const CLIENT_CLOSED: u16 = 499;

/// Accounts for one request; everything is written down when it is dropped.
pub(crate) struct Exchange {
    worker: Arc<Worker>,
    client: Arc<ClientSide>,
    /// The router has all the requests it takes.
    pub(crate) overload: bool,
    started: Instant,
    method: MethodLabel,
    pub(crate) version: Version,
    status: u16,
    bytes_out: u64,
    /// Namespace label: only namespaces that exist, so that callers cannot invent series.
    namespace: Option<Arc<str>>,
    path: Option<PathAndQuery>,
    target: Option<SandboxRequest>,
    log: Option<LogFacts>,
    pub(crate) trace: TraceContext,
    held: Option<Arc<LivePod>>,
}

struct LogFacts {
    method: Method,
    user_agent: Option<HeaderValue>,
}

impl Exchange {
    pub(crate) fn begin<B>(worker: &Arc<Worker>, client: &Arc<ClientSide>, request: &Request<B>) -> Box<Self> {
        let shared = &worker.shared;
        shared.metrics.in_flight.inc();
        client.request_begins();
        let before = shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let limit = shared.config.limits.in_flight_requests;
        let log = worker.log.is_some().then(|| LogFacts {
            method: request.method().clone(),
            user_agent: request.headers().get(USER_AGENT).cloned(),
        });
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
            target: None,
            log,
            trace: TraceContext::begin(request.headers(), shared.traces.is_some()),
            held: None,
        })
    }

    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Remembers what the request asks for, once it is known to be well-formed.
    pub(crate) fn names(&mut self, target: &SandboxRequest) {
        self.namespace = self.worker.shared.namespace_label(target.namespace.as_str());
        self.target = Some(target.clone());
    }

    /// Counts the request against its sandbox; `false` when the sandbox has enough.
    pub(crate) fn hold(&mut self, pod: &Arc<LivePod>) -> bool {
        if self.held.is_some() {
            return true;
        }
        let limit = self.worker.shared.config.limits.requests_per_sandbox;
        let before = pod.in_flight.fetch_add(1, Ordering::Relaxed);
        if limit > 0 && before >= limit {
            pod.in_flight.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.held = Some(Arc::clone(pod));
        true
    }

    pub(crate) fn namespace(&self) -> Option<&Arc<str>> {
        self.namespace.as_ref()
    }

    pub(crate) fn answered(&mut self, status: u16) {
        self.status = status;
    }

    pub(crate) fn add_bytes_out(&mut self, count: u64) {
        self.bytes_out += count;
    }

    /// The sandbox's side broke after the head of the response.
    pub(crate) fn broken_off(&mut self) {
        self.worker.shared.metrics.upstream_error(self.namespace.as_ref(), UpstreamReason::Eof);
    }

    pub(crate) fn failed(&mut self, error: &RouterError) {
        self.status = error.status().as_u16();
        if let Some(reason) = error.upstream_reason() {
            self.worker.shared.metrics.upstream_error(self.namespace.as_ref(), reason);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let shared = &self.worker.shared;
        self.client.request_ends();
        shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        shared.metrics.in_flight.dec();
        if let Some(pod) = self.held.take() {
            pod.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        let duration = self.started.elapsed();
        shared.metrics.request(&self.worker.recent, self.method, self.status, self.namespace.as_ref(), duration);
        let path = self.path.as_ref().map_or("", PathAndQuery::path);
        if let Some(traces) = &shared.traces {
            traces.finish(&self.trace, self.method, path, self.status, duration, self.target.as_ref());
        }
        if let (Some(log), Some(sink)) = (&self.log, &self.worker.log) {
            sink.write(&Line {
                method: log.method.as_str(),
                path,
                status: self.status,
                duration,
                client_ip: self.client.inbound.peer.to_str().unwrap_or(""),
                sandbox_id: self.target.as_ref().map_or("", |target| target.id.as_str()),
                sandbox_namespace: self.target.as_ref().map_or("", |target| target.namespace.as_str()),
                bytes_out: self.bytes_out,
                user_agent: log.user_agent.as_ref().map_or(&[], HeaderValue::as_bytes),
                trace: &self.trace,
            });
        }
    }
}
