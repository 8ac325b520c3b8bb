//! Sends one request to its sandbox: resolve, connect (with retries while nothing was sent), send, wait for the head of
//! the response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_sandbox_protocol::router_headers::SandboxRequest;
use http::header::{HOST, HeaderValue};
use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;
use tokio::time::{Instant, sleep, timeout};

use crate::error::{DialError, RouterError, UpstreamReason};
use crate::proxy::body::{RequestBody, UploadProgress};
use crate::proxy::connector::Stream;
use crate::proxy::exchange::Exchange;
use crate::proxy::pool::{Lease, PoolKey, SendError};
use crate::resolve::index::{LivePod, PodIndex};
use crate::resolve::{self, Decision, Endpoint};
use crate::sleep::{NotBegun, WakeAnswer};
use crate::state::Worker;

/// Interval between two looks at the index while a request waits for a Pod and nothing changes.
const RECHECK: Duration = Duration::from_secs(1);

/// The head of a response, with the connection that carries its body.
pub(crate) enum UpstreamResponse {
    Leased(Response<Incoming>, Lease),
    Shared(Response<Incoming>),
}

/// The protocol used towards the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamProtocol {
    Http1,
    /// HTTP/2 with prior knowledge, for gRPC.
    Http2,
}

/// Sends a request within its time budget.
///
/// The budget limits the wait for the head of the response and starts again with every part of the upload that is
/// transferred, so that neither a long upload nor a long download is aborted while it makes progress.
pub(crate) async fn send(
    exchange: &mut Exchange,
    sandbox: &SandboxRequest,
    request: Request<RequestBody>,
    protocol: UpstreamProtocol,
) -> Result<UpstreamResponse, RouterError> {
    let budget = budget(exchange.worker(), sandbox);
    let limit = exchange.worker().shared.config.limits.request_body_bytes;
    let upload = request.body().progress();
    let waking = AtomicBool::new(false);
    let mut attempt = std::pin::pin!(attempt(exchange, sandbox, request, protocol, &waking));
    let mut deadline = std::pin::pin!(sleep(budget));
    let result = loop {
        tokio::select! {
            biased;
            result = &mut attempt => break result,
            () = &mut deadline => match extended_deadline(upload.as_deref(), budget) {
                Some(later) => deadline.as_mut().reset(later),
                None if waking.load(Ordering::Relaxed) => {
                    break Err(RouterError::NotAwake { id: sandbox.id.clone(), waited: budget });
                }
                None => break Err(RouterError::Timeout { id: sandbox.id.clone() }),
            },
        }
    };
    match result {
        Err(_) if upload.is_some_and(|upload| upload.too_large()) => Err(RouterError::BodyTooLarge(limit)),
        result => result,
    }
}

/// The smaller of the client's timeout and the router's.
fn budget(worker: &Worker, sandbox: &SandboxRequest) -> Duration {
    let timeouts = &worker.shared.config.timeouts;
    let granted = timeouts.response_header.map_or(timeouts.proxy, |stricter| stricter.min(timeouts.proxy));
    sandbox.timeout.map_or(granted, |asked| asked.min(granted))
}

fn extended_deadline(upload: Option<&UploadProgress>, budget: Duration) -> Option<Instant> {
    let later = upload?.last_progress() + budget;
    (later > Instant::now()).then_some(later)
}

async fn attempt(
    exchange: &mut Exchange,
    sandbox: &SandboxRequest,
    mut request: Request<RequestBody>,
    protocol: UpstreamProtocol,
    // Set while the request waits for a Sandbox that is being woken.
    waking: &AtomicBool,
) -> Result<UpstreamResponse, RouterError> {
    let worker = Arc::clone(exchange.worker());
    let retries = &worker.shared.config.retries;
    let mut delay = retries.initial_delay;
    let mut woken = false;
    let mut tries = 0;
    loop {
        let located = match locate(&worker, sandbox).await? {
            Ok(endpoint) => admit_to_sandbox(exchange, sandbox, endpoint).await?,
            Err(error) => Err(error),
        };
        let dial_error = match located {
            Ok(endpoint) => {
                set_authority(&mut request, &endpoint, protocol);
                if let Some(signer) = &worker.shared.signer {
                    signer.sign(request.headers_mut(), endpoint.pod.as_deref());
                }
                match send_once(&worker, &endpoint, request, protocol).await {
                    Outcome::Response(response) => return Ok(response),
                    Outcome::Failed(error) => return Err(upstream_error(sandbox, &error)),
                    Outcome::Unsent(error, unsent) => {
                        request = unsent;
                        mark_unreachable_if_host_is_dead(&worker, exchange, &endpoint, &error);
                        error
                    }
                }
            }
            Err(error) => error,
        };
        let may_wake = matches!(dial_error, DialError::NoPod) && !woken && !exchange.looks_only();
        if may_wake && wake(&worker, sandbox, waking).await? {
            woken = true;
            continue;
        }
        if tries >= retries.max {
            let refused = matches!(dial_error, DialError::NoPod) && names_foreign_pod(&worker, sandbox);
            return Err(if refused {
                RouterError::Forbidden
            } else {
                RouterError::Dial { id: sandbox.id.clone(), cause: dial_error }
            });
        }
        tries += 1;
        worker.shared.metrics.retry(exchange.namespace());
        pause(&worker, sandbox, &dial_error, delay).await;
        delay = (delay * 2).min(retries.max_delay);
    }
}

/// A client that names an address that was never this Sandbox's, or the UID of another Sandbox, is forbidden if there
/// is no live Pod that could confirm it.
fn names_foreign_pod(worker: &Worker, sandbox: &SandboxRequest) -> bool {
    let index = &worker.shared.index;
    let (namespace, id) = (sandbox.namespace.as_str(), sandbox.id.as_str());
    sandbox.pod_ip.is_some_and(|ip| !index.was_address_of(namespace, id, ip))
        || sandbox.uid_str().is_some_and(|uid| index.knows_uid(uid))
}

/// Finds the current endpoint of the sandbox. The inner error may go away with time.
async fn locate(worker: &Worker, sandbox: &SandboxRequest) -> Result<Result<Endpoint, DialError>, RouterError> {
    let shared = &worker.shared;
    let verification = shared.config.verification;
    let decision = resolve::decide(sandbox, &shared.index, verification, shared.config.cluster_domain.as_deref());
    let decision = match decision {
        Decision::LookUp(name) => {
            // With verification, a DNS answer can be accepted only if the Sandbox has a live Pod to compare it with.
            let known = shared.index.by_name(sandbox.namespace.as_str(), sandbox.id.as_str()).is_some();
            if verification.verify_targets && !known {
                return Ok(Err(DialError::NoPod));
            }
            match shared.dns.lookup(&name).await {
                Ok(answer) => resolve::decide_by_dns_answer(sandbox, &answer, &shared.index, verification),
                Err(error) => return Ok(Err(DialError::Dns(error))),
            }
        }
        other => other,
    };
    match decision {
        Decision::Dial(endpoint) => Ok(Ok(endpoint)),
        Decision::Absent => Ok(Err(DialError::NoPod)),
        Decision::Forbidden | Decision::LookUp(_) => Err(RouterError::Forbidden),
    }
}

/// Sets the sandbox's authority in the request.
fn set_authority(request: &mut Request<RequestBody>, endpoint: &Endpoint, protocol: UpstreamProtocol) {
    let authority = endpoint.addr.to_string();
    match protocol {
        UpstreamProtocol::Http1 => {
            let host = HeaderValue::from_str(&authority).expect("an address and port are visible ASCII");
            request.headers_mut().insert(HOST, host);
            *request.version_mut() = Version::HTTP_11;
        }
        UpstreamProtocol::Http2 => {
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
    Response(UpstreamResponse),
    /// Something was sent; its effect is unknown.
    Failed(hyper::Error),
    Unsent(DialError, Request<RequestBody>),
}

async fn send_once(
    worker: &Worker,
    endpoint: &Endpoint,
    request: Request<RequestBody>,
    protocol: UpstreamProtocol,
) -> Outcome {
    match protocol {
        UpstreamProtocol::Http1 => send_http1(worker, endpoint, request).await,
        UpstreamProtocol::Http2 => send_http2(worker, endpoint, request).await,
    }
}

async fn send_http1(worker: &Worker, endpoint: &Endpoint, mut request: Request<RequestBody>) -> Outcome {
    let key = PoolKey::from(endpoint);
    // A pooled connection that turns out to be dead before a byte is sent is replaced by the next one.
    while let Some(lease) = worker.pool.take(&key).await {
        match lease.send(request).await {
            Ok((response, lease)) => return Outcome::Response(UpstreamResponse::Leased(response, lease)),
            Err(SendError { unsent: Some(unsent), .. }) => request = unsent,
            Err(SendError { error, unsent: None }) => return Outcome::Failed(error),
        }
    }
    let lease = match dial(worker, endpoint).await {
        Ok(stream) => match Lease::open(key, stream).await {
            Ok(lease) => lease,
            Err(error) => return Outcome::Failed(error),
        },
        Err(error) => return Outcome::Unsent(error, request),
    };
    match lease.send(request).await {
        Ok((response, lease)) => Outcome::Response(UpstreamResponse::Leased(response, lease)),
        Err(SendError { error, .. }) => Outcome::Failed(error),
    }
}

async fn send_http2(worker: &Worker, endpoint: &Endpoint, mut request: Request<RequestBody>) -> Outcome {
    let key = PoolKey::from(endpoint);
    if let Some(mut sender) = worker.pool.http2(&key) {
        match sender.try_send_request(request).await {
            Ok(response) => return Outcome::Response(UpstreamResponse::Shared(response)),
            Err(mut error) => match error.take_message() {
                Some(unsent) => request = unsent,
                None => return Outcome::Failed(error.into_error()),
            },
        }
    }
    let stream = match dial(worker, endpoint).await {
        Ok(stream) => stream,
        Err(error) => return Outcome::Unsent(error, request),
    };
    match worker.pool.open_http2(key, stream).await {
        Ok(mut sender) => match sender.send_request(request).await {
            Ok(response) => Outcome::Response(UpstreamResponse::Shared(response)),
            Err(error) => Outcome::Failed(error),
        },
        Err(error) => Outcome::Failed(error),
    }
}

async fn dial(worker: &Worker, endpoint: &Endpoint) -> Result<Stream, DialError> {
    match timeout(worker.shared.config.timeouts.dial, worker.shared.connector.connect(endpoint)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(DialError::Connect(error)),
        Err(_) => Err(DialError::TimedOut),
    }
}

fn mark_unreachable_if_host_is_dead(worker: &Worker, exchange: &Exchange, endpoint: &Endpoint, error: &DialError) {
    if let Some(pod) = &endpoint.pod
        && error.host_looks_dead()
        && worker.shared.index.mark_unreachable(pod)
    {
        worker.shared.metrics.invalidation(exchange.namespace());
        tracing::warn!(namespace = %pod.namespace, sandbox = %pod.sandbox, pod = %pod.pod, "Pod is not used for a while: its host does not respond");
    }
}

fn upstream_error(sandbox: &SandboxRequest, error: &hyper::Error) -> RouterError {
    let reason = if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        UpstreamReason::Eof
    } else {
        UpstreamReason::Other
    };
    tracing::debug!(%error, sandbox = %sandbox.id, "Exchange with a sandbox failed");
    RouterError::Upstream { id: sandbox.id.clone(), reason }
}

/// Counts the request against its sandbox and, unless it only looks at it, as a use. The inner error may go away with time.
async fn admit_to_sandbox(
    exchange: &mut Exchange,
    sandbox: &SandboxRequest,
    endpoint: Endpoint,
) -> Result<Result<Endpoint, DialError>, RouterError> {
    let Some(pod) = &endpoint.pod else { return Ok(Ok(endpoint)) };
    if !exchange.acquire_sandbox_slot(pod) {
        return Err(RouterError::SandboxOverloaded { id: sandbox.id.clone() });
    }
    match exchange.begin_activity(pod).await {
        Ok(()) => Ok(Ok(endpoint)),
        // The Pod is about to be deleted.
        Err(NotBegun::Suspended) => Ok(Err(DialError::NoPod)),
        Err(NotBegun::Unrecorded) => Err(RouterError::Unrecorded { id: sandbox.id.clone() }),
    }
}

/// Wakes the Sandbox if it is suspended and requests wake it, and waits for its Pod; the caller sets a timeout.
async fn wake(worker: &Worker, sandbox: &SandboxRequest, waking: &AtomicBool) -> Result<bool, RouterError> {
    let shared = &worker.shared;
    let Some(sleep) = &shared.sleep else { return Ok(false) };
    let (namespace, id) = (sandbox.namespace.as_str(), sandbox.id.as_str());
    let limit = shared.config.limits.requests_per_sandbox;
    let ticket = sleep.waker.ticket(namespace, id, limit);
    let ticket = ticket.ok_or_else(|| RouterError::SandboxOverloaded { id: sandbox.id.clone() })?;
    waking.store(true, Ordering::Relaxed);
    let asked = Instant::now();
    match ticket.answer(sandbox.uid_str()).await {
        WakeAnswer::Waking => {
            shared.metrics.woken(shared.namespace_label(namespace).as_ref());
            let pod = wait_for_pod(worker, sandbox).await;
            waking.store(false, Ordering::Relaxed);
            if let Some(pod) = pod {
                // The controller recorded activity as it woke the Sandbox, or its idle time counts from being Ready.
                pod.activity.confirm_age(asked.elapsed());
            }
            Ok(true)
        }
        WakeAnswer::NotSuspended => {
            waking.store(false, Ordering::Relaxed);
            Ok(false)
        }
        WakeAnswer::StaysSuspended => Err(RouterError::Suspended { id: sandbox.id.clone() }),
    }
}

/// Waits before the next attempt; ends early if a missing Pod appears.
async fn pause(worker: &Worker, sandbox: &SandboxRequest, error: &DialError, delay: Duration) {
    match error {
        DialError::NoPod => {
            let _ = timeout(delay, wait_for_pod(worker, sandbox)).await;
        }
        _ => sleep(delay).await,
    }
}

/// Completes when the index has a live Pod for the request; the caller sets a timeout.
async fn wait_for_pod(worker: &Worker, sandbox: &SandboxRequest) -> Option<Arc<LivePod>> {
    let index: &PodIndex = &worker.shared.index;
    let mut changes = index.subscribe();
    loop {
        let namespace = sandbox.namespace.as_str();
        let known = sandbox
            .uid_str()
            .and_then(|uid| index.by_uid(namespace, uid))
            .or_else(|| index.by_name(namespace, sandbox.id.as_str()));
        if let Some(pod) = known.filter(|pod| pod.name_routable || sandbox.pod_ip.is_some() || sandbox.uid.is_some()) {
            return Some(pod);
        }
        // A Pod that was not used for a while comes back without a change.
        match timeout(RECHECK, changes.changed()).await {
            Ok(Ok(())) | Err(_) => {}
            // The sender is part of the index, so this does not happen while the index is in use.
            Ok(Err(_)) => return None,
        }
    }
}
