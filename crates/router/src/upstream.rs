//! Gets one request to its sandbox: resolve, connect (again, if nothing was sent), send, wait for the head.

use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_protocol::router_headers::SandboxRequest;
use http::header::{HOST, HeaderValue};
use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;
use tokio::time::{Instant, sleep, timeout};

use crate::body::{UploadBody, UploadState};
use crate::connect::{Stream, Target};
use crate::error::{DialError, RouterError, UpstreamReason};
use crate::exchange::Exchange;
use crate::index::PodIndex;
use crate::pool::{Lease, PoolKey, SendError};
use crate::resolve::{self, Decision};
use crate::wake::WakeOutcome;
use crate::worker::Worker;

/// The head of a response, and what carries its body.
pub(crate) enum Answer {
    Leased(Response<Incoming>, Lease),
    Shared(Response<Incoming>),
}

/// Which protocol the sandbox is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Http1,
    /// HTTP/2 with prior knowledge: what gRPC needs.
    Http2,
}

/// Sends a request within the time its budget allows.
///
/// The budget bounds the wait for the head, counted anew from every piece of the upload that moves: neither a long
/// upload nor a long download is cut while it lives.
pub(crate) async fn send(
    exchange: &mut Exchange,
    wanted: &SandboxRequest,
    request: Request<UploadBody>,
    wire: Wire,
) -> Result<Answer, RouterError> {
    let budget = budget(exchange.worker(), wanted);
    let limit = exchange.worker().shared.config.limits.request_body_bytes;
    let upload = request.body().state();
    let mut attempt = std::pin::pin!(attempt(exchange, wanted, request, wire));
    let mut deadline = std::pin::pin!(sleep(budget));
    let result = loop {
        tokio::select! {
            biased;
            result = &mut attempt => break result,
            () = &mut deadline => match still_moving(upload.as_deref(), budget) {
                Some(later) => deadline.as_mut().reset(later),
                None => break Err(RouterError::Timeout { id: wanted.id.clone() }),
            },
        }
    };
    match result {
        Err(_) if upload.is_some_and(|upload| upload.too_large()) => Err(RouterError::BodyTooLarge(limit)),
        result => result,
    }
}

/// The smaller of what the client asks for and what the router grants.
fn budget(worker: &Worker, wanted: &SandboxRequest) -> Duration {
    let timeouts = &worker.shared.config.timeouts;
    let granted = timeouts.response_header.map_or(timeouts.proxy, |stricter| stricter.min(timeouts.proxy));
    wanted.timeout.map_or(granted, |asked| asked.min(granted))
}

fn still_moving(upload: Option<&UploadState>, budget: Duration) -> Option<Instant> {
    let later = upload?.last_progress() + budget;
    (later > Instant::now()).then_some(later)
}

async fn attempt(
    exchange: &mut Exchange,
    wanted: &SandboxRequest,
    mut request: Request<UploadBody>,
    wire: Wire,
) -> Result<Answer, RouterError> {
    let worker = Arc::clone(exchange.worker());
    let retries = &worker.shared.config.retries;
    let mut delay = retries.initial_delay;
    let mut woken = false;
    let mut tries = 0;
    loop {
        let dialled = match locate(&worker, wanted).await? {
            Ok(target) => {
                if let Some(pod) = &target.pod
                    && !exchange.hold(pod)
                {
                    return Err(RouterError::SandboxOverloaded { id: wanted.id.clone() });
                }
                address_request(&mut request, &target, wire);
                match send_once(&worker, &target, request, wire).await {
                    Outcome::Answer(answer) => return Ok(answer),
                    Outcome::Failed(error) => return Err(upstream_error(wanted, &error)),
                    Outcome::Unsent(error, unsent) => {
                        request = unsent;
                        note_dead_host(&worker, exchange, &target, &error);
                        error
                    }
                }
            }
            Err(error) => error,
        };
        if matches!(dialled, DialError::NoPod) && !woken && wake(&worker, wanted).await {
            woken = true;
            wait_for_pod(&worker, wanted).await;
            continue;
        }
        if tries >= retries.max {
            let refused = matches!(dialled, DialError::NoPod) && claims_to_know(&worker, wanted);
            return Err(if refused {
                RouterError::Forbidden
            } else {
                RouterError::Dial { id: wanted.id.clone(), cause: dialled }
            });
        }
        tries += 1;
        worker.shared.metrics.retry(exchange.namespace());
        pause(&worker, wanted, &dialled, delay).await;
        delay = (delay * 2).min(retries.max_delay);
    }
}

/// A client that names an address that was never this Sandbox's, or another Sandbox's UID, and has no live Pod to show for
/// it is refused, not unlucky.
fn claims_to_know(worker: &Worker, wanted: &SandboxRequest) -> bool {
    let index = &worker.shared.index;
    let (namespace, id) = (wanted.namespace.as_str(), wanted.id.as_str());
    wanted.pod_ip.is_some_and(|ip| !index.was_address_of(namespace, id, ip))
        || wanted.uid_str().is_some_and(|uid| index.knows_uid(uid))
}

/// Where the sandbox is right now; the inner error is one that waiting may cure.
async fn locate(worker: &Worker, wanted: &SandboxRequest) -> Result<Result<Target, DialError>, RouterError> {
    let shared = &worker.shared;
    let verification = shared.config.verification;
    let decision = resolve::decide(wanted, &shared.index, verification, shared.config.cluster_domain.as_deref());
    let decision = match decision {
        Decision::LookUp(name) => {
            // With verification, an answer can only be right if the Sandbox has a live Pod to compare it with.
            let known = shared.index.by_name(wanted.namespace.as_str(), wanted.id.as_str()).is_some();
            if verification.verify_targets && !known {
                return Ok(Err(DialError::NoPod));
            }
            match shared.dns.lookup(&name).await {
                Ok(answer) => resolve::judge_dns_answer(wanted, &answer, &shared.index, verification),
                Err(error) => return Ok(Err(DialError::Dns(error))),
            }
        }
        other => other,
    };
    match decision {
        Decision::Dial(target) => Ok(Ok(target)),
        Decision::Absent => Ok(Err(DialError::NoPod)),
        Decision::Forbidden | Decision::LookUp(_) => Err(RouterError::Forbidden),
    }
}

/// Puts the sandbox's authority into the request.
fn address_request(request: &mut Request<UploadBody>, target: &Target, wire: Wire) {
    let authority = target.addr.to_string();
    match wire {
        Wire::Http1 => {
            let host = HeaderValue::from_str(&authority).expect("an address and port are visible ASCII");
            request.headers_mut().insert(HOST, host);
            *request.version_mut() = Version::HTTP_11;
        }
        Wire::Http2 => {
            request.headers_mut().remove(HOST);
            *request.version_mut() = Version::HTTP_2;
            let mut parts = std::mem::take(request.uri_mut()).into_parts();
            parts.scheme = Some(http::uri::Scheme::HTTP);
            parts.authority = authority.parse().ok();
            *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and the client's own path fit");
        }
    }
}

enum Outcome {
    Answer(Answer),
    /// Something was sent; what became of it is unknown.
    Failed(hyper::Error),
    Unsent(DialError, Request<UploadBody>),
}

async fn send_once(worker: &Worker, target: &Target, request: Request<UploadBody>, wire: Wire) -> Outcome {
    match wire {
        Wire::Http1 => send_http1(worker, target, request).await,
        Wire::Http2 => send_http2(worker, target, request).await,
    }
}

async fn send_http1(worker: &Worker, target: &Target, mut request: Request<UploadBody>) -> Outcome {
    let key = PoolKey::from(target);
    // Kept connections that turn out to be dead before a byte was sent cost nothing but the next try.
    while let Some(lease) = worker.pool.take(&key).await {
        match lease.send(request).await {
            Ok((response, lease)) => return Outcome::Answer(Answer::Leased(response, lease)),
            Err(SendError { unsent: Some(unsent), .. }) => request = unsent,
            Err(SendError { error, unsent: None }) => return Outcome::Failed(error),
        }
    }
    let lease = match dial(worker, target).await {
        Ok(stream) => match Lease::open(key, stream).await {
            Ok(lease) => lease,
            Err(error) => return Outcome::Failed(error),
        },
        Err(error) => return Outcome::Unsent(error, request),
    };
    match lease.send(request).await {
        Ok((response, lease)) => Outcome::Answer(Answer::Leased(response, lease)),
        Err(SendError { error, .. }) => Outcome::Failed(error),
    }
}

async fn send_http2(worker: &Worker, target: &Target, mut request: Request<UploadBody>) -> Outcome {
    let key = PoolKey::from(target);
    if let Some(mut sender) = worker.pool.http2(&key) {
        match sender.try_send_request(request).await {
            Ok(response) => return Outcome::Answer(Answer::Shared(response)),
            Err(mut error) => match error.take_message() {
                Some(unsent) => request = unsent,
                None => return Outcome::Failed(error.into_error()),
            },
        }
    }
    let stream = match dial(worker, target).await {
        Ok(stream) => stream,
        Err(error) => return Outcome::Unsent(error, request),
    };
    match worker.pool.open_http2(key, stream).await {
        Ok(mut sender) => match sender.send_request(request).await {
            Ok(response) => Outcome::Answer(Answer::Shared(response)),
            Err(error) => Outcome::Failed(error),
        },
        Err(error) => Outcome::Failed(error),
    }
}

async fn dial(worker: &Worker, target: &Target) -> Result<Stream, DialError> {
    match timeout(worker.shared.config.timeouts.dial, worker.shared.connect.connect(target)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(DialError::Connect(error)),
        Err(_) => Err(DialError::TimedOut),
    }
}

fn note_dead_host(worker: &Worker, exchange: &Exchange, target: &Target, error: &DialError) {
    if let Some(pod) = &target.pod
        && error.host_looks_dead()
        && worker.shared.index.evict(pod)
    {
        worker.shared.metrics.invalidation(exchange.namespace());
        tracing::warn!(namespace = %pod.namespace, sandbox = %pod.sandbox, pod = %pod.pod, "Pod's host looks dead");
    }
}

fn upstream_error(wanted: &SandboxRequest, error: &hyper::Error) -> RouterError {
    let reason = if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        UpstreamReason::Eof
    } else {
        UpstreamReason::Other
    };
    tracing::debug!(%error, sandbox = %wanted.id, "Exchange with a sandbox failed");
    RouterError::Upstream { id: wanted.id.clone(), reason }
}

async fn wake(worker: &Worker, wanted: &SandboxRequest) -> bool {
    match &worker.shared.wake {
        Some(hook) => hook.wake(wanted.namespace.as_str(), wanted.id.as_str()).await == WakeOutcome::Waking,
        None => false,
    }
}

/// Waits before the next attempt; a missing Pod that appears ends the wait early.
async fn pause(worker: &Worker, wanted: &SandboxRequest, error: &DialError, delay: Duration) {
    match error {
        DialError::NoPod => {
            let _ = timeout(delay, wait_for_pod(worker, wanted)).await;
        }
        _ => sleep(delay).await,
    }
}

/// Completes when the index knows a live Pod for the request; the caller's deadline bounds it.
async fn wait_for_pod(worker: &Worker, wanted: &SandboxRequest) {
    let index: &PodIndex = &worker.shared.index;
    let mut changes = index.subscribe();
    loop {
        let namespace = wanted.namespace.as_str();
        let known = wanted
            .uid_str()
            .and_then(|uid| index.by_uid(namespace, uid))
            .or_else(|| index.by_name(namespace, wanted.id.as_str()));
        if known.is_some_and(|pod| pod.name_routable || wanted.pod_ip.is_some() || wanted.uid.is_some()) {
            return;
        }
        // The sender lives in the index, which outlives us.
        if changes.changed().await.is_err() {
            return;
        }
    }
}
