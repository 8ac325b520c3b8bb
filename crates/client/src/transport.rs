//! Requests to one sandbox: pooled connections, the router's headers, deadlines, and repetition where it is safe.

use crate::{Address, ClientError, Connection, TraceContext, connection::ROUTER_NAMESPACE, dial::Dialer, gateway};
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_protocol::{native::ErrorBody, router_headers as names};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::{
    client::legacy::{Client as HttpClient, Error as HttpError},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{Api, Client};
use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Waits before the second and later attempts of a request that may be repeated.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// Idle connections are kept this long.
const IDLE: Duration = Duration::from_secs(60);
/// Words of an error that are read; more is cut.
const MAX_ERROR: usize = 64 * 1024;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
/// Content that is sent as it is produced.
pub type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Whether a request may be sent again when it is not known how far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Only while it is certain that nothing was sent.
    Never,
    /// It does no harm.
    Harmless,
}

/// What a request carries.
pub enum Payload {
    Empty,
    Bytes(Bytes),
    /// Sent once: such a request is never repeated.
    Stream(ByteStream, Option<u64>),
}

/// One request to a sandbox.
pub struct Call {
    pub method: Method,
    /// Path and query, from the slash on.
    pub path: String,
    pub headers: HeaderMap,
    pub payload: Payload,
    /// How long the answer may take to begin, all attempts together.
    pub timeout: Option<Duration>,
    pub repeat: Repeat,
    /// Statuses from 400 on that are answers, not errors.
    pub accept: &'static [u16],
    /// Every status is an answer, for callers that look at it themselves.
    pub raw: bool,
    /// In the words of an error: `run a command`.
    pub operation: String,
    /// Instead of the handle's own.
    pub trace: Option<TraceContext>,
    /// Instead of the transport's own.
    pub port: Option<u16>,
}

impl Call {
    pub fn new(method: Method, path: impl Into<String>, operation: impl Into<String>) -> Self {
        let repeat = match method {
            Method::GET | Method::HEAD | Method::PUT | Method::DELETE => Repeat::Harmless,
            _ => Repeat::Never,
        };
        Self {
            method,
            path: path.into(),
            headers: HeaderMap::new(),
            payload: Payload::Empty,
            timeout: Some(Duration::from_secs(60)),
            repeat,
            accept: &[],
            raw: false,
            operation: operation.into(),
            trace: None,
            port: None,
        }
    }

    pub fn json(mut self, value: &impl serde::Serialize) -> Self {
        let bytes = serde_json::to_vec(value).expect("wire types hold nothing that JSON cannot say");
        self.headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.payload = Payload::Bytes(bytes.into());
        self
    }

    pub fn header(mut self, name: HeaderName, value: &str) -> Result<Self, ClientError> {
        let value = HeaderValue::from_str(value);
        let value = value.map_err(|_| ClientError::Invalid(format!("{name}: not a header's value")))?;
        self.headers.insert(name, value);
        Ok(self)
    }
}

/// Everything needed to talk to one sandbox. Clones share connections.
#[derive(Clone)]
pub struct Transport {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    namespace: String,
    port: u16,
    kube: Option<Client>,
    route: Route,
    http: HttpClient<Dialer, Body>,
    /// For gRPC, which needs HTTP/2.
    http2: HttpClient<Dialer, Body>,
    headers: HeaderMap,
    trace: Option<TraceContext>,
    /// Whether `X-Sandbox-Pod-IP` is sent.
    send_pod_ip: bool,
    known: Mutex<Known>,
}

/// What was learnt from the API and may grow old.
#[derive(Default)]
struct Known {
    pod_ip: Option<String>,
    /// Looking again is pointless: the API does not let us.
    pod_ip_denied: bool,
    base: Option<String>,
}

enum Route {
    /// A router: `base` plus headers.
    Router { base: String },
    /// A router behind a Gateway, whose address is waited for.
    Gateway { client: Client, options: crate::GatewayOptions },
    /// The daemon itself.
    Daemon { address: Option<Address> },
}

/// What a transport is made of.
#[derive(Clone)]
pub struct TransportOptions {
    pub name: String,
    pub namespace: String,
    pub port: u16,
    pub connection: Connection,
    pub kube: Option<Client>,
    pub trace: Option<TraceContext>,
    pub send_pod_ip: bool,
}

impl Transport {
    pub fn new(options: TransportOptions) -> Result<Self, ClientError> {
        let needs_kube = || {
            let message = "this way of connecting needs a cluster's API";
            options.kube.clone().ok_or_else(|| ClientError::Invalid(message.to_owned()))
        };
        let mut headers = HeaderMap::new();
        let (route, dialer) = match &options.connection {
            Connection::Direct(direct) => {
                headers = extra_headers(&direct.headers)?;
                let base = direct.url.trim_end_matches('/').to_owned();
                let dialer = if direct.url.starts_with("https://") { Dialer::tls(direct)? } else { Dialer::plain() };
                (Route::Router { base }, dialer)
            }
            Connection::Tunnel(tunnel) => {
                let first = tunnel.router_namespace.clone().unwrap_or_else(|| ROUTER_NAMESPACE.to_owned());
                let mut namespaces = vec![first];
                if namespaces[0] != options.namespace {
                    namespaces.push(options.namespace.clone());
                }
                let dialer = Dialer::Router { client: needs_kube()?, namespaces };
                (Route::Router { base: "http://localhost".to_owned() }, dialer)
            }
            Connection::Gateway(gateway) => {
                (Route::Gateway { client: needs_kube()?, options: gateway.clone() }, Dialer::plain())
            }
            Connection::PodTunnel => {
                let (namespace, sandbox) = (options.namespace.clone(), options.name.clone());
                (Route::Daemon { address: None }, Dialer::Sandbox { client: needs_kube()?, namespace, sandbox })
            }
            Connection::InCluster(address) => (Route::Daemon { address: Some(*address) }, Dialer::plain()),
        };
        Ok(Self::assemble(options, route, dialer, headers))
    }

    /// To one Pod's daemon, through the API's port-forward.
    pub(crate) fn to_pod(client: Client, namespace: String, pod: String) -> Self {
        let dialer = Dialer::Pod { client: client.clone(), namespace: namespace.clone(), pod: pod.clone() };
        let options = TransportOptions {
            name: pod,
            namespace,
            port: names::DEFAULT_PORT,
            connection: Connection::PodTunnel,
            kube: Some(client),
            trace: None,
            send_pod_ip: false,
        };
        Self::assemble(options, Route::Daemon { address: None }, dialer, HeaderMap::new())
    }

    fn assemble(options: TransportOptions, route: Route, dialer: Dialer, headers: HeaderMap) -> Self {
        let http = HttpClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(dialer.clone());
        let http2 = HttpClient::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .http2_only(true)
            .build(dialer);
        let TransportOptions { name, namespace, port, kube, trace, send_pod_ip, .. } = options;
        let known = Mutex::default();
        let inner = Inner { name, namespace, port, kube, route, http, http2, headers, trace, send_pod_ip, known };
        Self { inner: Arc::new(inner) }
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Sends a request. An answer from 400 on is an error unless the call accepts its status.
    pub async fn send(&self, call: Call) -> Result<Response<Incoming>, ClientError> {
        let limit = call.timeout;
        let (operation, accept, raw) = (call.operation.clone(), call.accept, call.raw);
        let mut failed = None;
        let sending = self.send_with_repeats(call, &mut failed);
        let answer = match limit {
            Some(limit) => match tokio::time::timeout(limit, sending).await {
                Ok(answer) => answer?,
                Err(_) => {
                    let (name, after) = (self.inner.name.clone(), limit);
                    // Time that went into attempts that failed: their reason says more than the time.
                    return Err(match failed {
                        Some(message) => ClientError::Disconnected { name, operation, message },
                        None => ClientError::CallTimeout { name, operation, after },
                    });
                }
            },
            None => sending.await?,
        };
        let status = answer.status().as_u16();
        if raw || status < 300 || accept.contains(&status) {
            return Ok(answer);
        }
        Err(self.refused(answer, operation).await)
    }

    /// `failed` holds the reason of the last attempt while the next one has not been sent.
    async fn send_with_repeats(
        &self,
        call: Call,
        failed: &mut Option<String>,
    ) -> Result<Response<Incoming>, ClientError> {
        let begun = Instant::now();
        let Call { method, path, mut headers, mut payload, timeout, mut repeat, operation, trace, port, .. } = call;
        let mut pauses = PAUSES.iter();
        loop {
            // A stream is taken apart for the attempt, whether or not anything of it is sent.
            let one_shot = matches!(payload, Payload::Stream(..));
            let (body, again) = match std::mem::replace(&mut payload, Payload::Empty) {
                Payload::Empty => (full(Bytes::new()), Payload::Empty),
                Payload::Bytes(bytes) => (full(bytes.clone()), Payload::Bytes(bytes)),
                Payload::Stream(stream, length) => {
                    repeat = Repeat::Never;
                    if let Some(length) = length {
                        headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
                    }
                    (streamed(stream), Payload::Empty)
                }
            };
            payload = again;
            let left = timeout.map(|limit| limit.saturating_sub(begun.elapsed()));
            let request = self.request(&method, &path, headers.clone(), left, trace.as_ref(), port, body).await;
            let (request, hint) = request?;
            let outcome = self.attempt(request, hint.is_some()).await;
            let error = match outcome {
                // The router refused an address that is not the sandbox's any more: nothing was passed on.
                Ok(answer) if answer.status() == 403 && !one_shot && self.hint_is_stale(hint).await => continue,
                Ok(answer) if repeat == Repeat::Harmless && is_passing(answer.status()) => {
                    let Some(pause) = pauses.next() else { return Ok(answer) };
                    tokio::time::sleep(*pause).await;
                    continue;
                }
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let unsent = error.is_connect();
            let message = chain(&error);
            let (name, operation) = (self.inner.name.clone(), operation.clone());
            if !unsent && repeat == Repeat::Never {
                return Err(ClientError::OutcomeUnknown { name, operation, message });
            }
            let pause = if one_shot { None } else { pauses.next() };
            match pause {
                Some(pause) => {
                    *failed = Some(message);
                    tokio::time::sleep(*pause).await;
                }
                None => return Err(typed(error).unwrap_or(ClientError::Disconnected { name, operation, message })),
            }
        }
    }

    /// Whether the API now names another address than the one that was sent.
    async fn hint_is_stale(&self, sent: Option<String>) -> bool {
        sent.is_some() && self.pod_ip().await != sent
    }

    async fn attempt(&self, request: Request<Body>, hinted: bool) -> Result<Response<Incoming>, HttpError> {
        let sent = self.inner.http.request(request).await;
        let stale = match &sent {
            // A router refuses an address that is not the sandbox's own any more.
            Ok(answer) => answer.status().is_server_error() || (hinted && answer.status() == 403),
            Err(_) => true,
        };
        if stale {
            self.forget();
        }
        sent
    }

    /// Forgets addresses that may have changed.
    fn forget(&self) {
        let mut known = self.known();
        known.pod_ip = None;
        known.base = None;
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.inner.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one request")]
    async fn request(
        &self,
        method: &Method,
        path: &str,
        mut headers: HeaderMap,
        left: Option<Duration>,
        trace: Option<&TraceContext>,
        port: Option<u16>,
        body: Body,
    ) -> Result<(Request<Body>, Option<String>), ClientError> {
        let port = port.unwrap_or(self.inner.port);
        let base = self.base(port).await?;
        for (name, value) in &self.inner.headers {
            if !headers.contains_key(name) {
                headers.insert(name.clone(), value.clone());
            }
        }
        let mut pod_ip = None;
        if !matches!(self.inner.route, Route::Daemon { .. }) {
            let value = |text: &str| HeaderValue::from_str(text).map_err(|_| not_a_name(text));
            headers.insert(names::SANDBOX_ID, value(&self.inner.name)?);
            headers.insert(names::SANDBOX_NAMESPACE, value(&self.inner.namespace)?);
            headers.insert(names::SANDBOX_PORT, HeaderValue::from(port));
            if let Some(left) = left {
                headers.insert(names::SANDBOX_TIMEOUT, value(&seconds(left))?);
            }
            pod_ip = self.pod_ip().await;
            if let Some(address) = &pod_ip {
                headers.insert(names::SANDBOX_POD_IP, value(address)?);
            }
        }
        if let Some(trace) = trace.or(self.inner.trace.as_ref()) {
            trace.write(&mut headers);
        }
        let uri: Uri = format!("{base}{path}").parse().map_err(|_| {
            ClientError::Invalid(format!("{base}{path} is not an address; it needs to look like http://host:port"))
        })?;
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok((request, pod_ip))
    }

    /// Scheme and authority of the next request.
    async fn base(&self, port: u16) -> Result<String, ClientError> {
        match &self.inner.route {
            Route::Router { base } => Ok(base.clone()),
            Route::Gateway { client, options } => {
                if let Some(base) = self.known().base.clone() {
                    return Ok(base);
                }
                let host = bracketed(&gateway::address(client, options).await?);
                let base = format!("http://{host}");
                self.known().base = Some(base.clone());
                Ok(base)
            }
            Route::Daemon { address: None } => Ok(format!("http://localhost:{port}")),
            Route::Daemon { address: Some(address) } => {
                if let Some(base) = self.known().base.clone() {
                    return Ok(format!("{base}:{port}"));
                }
                let (host, keep) = self.host(*address).await?;
                let base = format!("http://{}", bracketed(&host));
                if keep {
                    self.known().base = Some(base.clone());
                }
                Ok(format!("{base}:{port}"))
            }
        }
    }

    /// The sandbox's host inside the cluster, and whether to remember it.
    async fn host(&self, address: Address) -> Result<(String, bool), ClientError> {
        let (name, namespace) = (&self.inner.name, &self.inner.namespace);
        let dns = format!("{name}.{namespace}.svc.cluster.local");
        match address {
            Address::Dns => Ok((dns, true)),
            Address::PodIpThenDns => Ok(match self.look().await {
                Ok(Some(sandbox)) => select_pod_ip(sandbox.pod_ips()).map_or((dns, false), |address| (address, true)),
                _ => (dns, false),
            }),
            Address::PodIp => {
                let sandbox = self.look().await?;
                let address = sandbox.and_then(|sandbox| select_pod_ip(sandbox.pod_ips()));
                let last = "its status names no address".to_owned();
                let missing = || ClientError::NotRunning { name: name.clone(), last };
                Ok((address.ok_or_else(missing)?, true))
            }
            Address::Service => {
                let sandbox = self.look().await?;
                let status = sandbox.and_then(|sandbox| sandbox.status);
                let service = status.and_then(|status| status.service_fqdn).filter(|name| !name.is_empty());
                Ok((service.ok_or_else(|| ClientError::NoService { name: name.clone() })?, true))
            }
        }
    }

    async fn look(&self) -> Result<Option<Sandbox>, ClientError> {
        let Some(client) = &self.inner.kube else { return Ok(None) };
        let api: Api<Sandbox> = Api::namespaced(client.clone(), &self.inner.namespace);
        let found = api.get_opt(&self.inner.name).await;
        found.map_err(ClientError::api(format!("look up `{}`", self.inner.name)))
    }

    /// What goes into `X-Sandbox-Pod-IP`; a hint, so that nothing fails without it.
    async fn pod_ip(&self) -> Option<String> {
        if !self.inner.send_pod_ip || self.known().pod_ip_denied {
            return None;
        }
        if let Some(address) = self.known().pod_ip.clone() {
            return Some(address);
        }
        match self.look().await {
            Ok(found) => {
                let address = found.and_then(|sandbox| select_pod_ip(sandbox.pod_ips()));
                self.known().pod_ip = address.clone();
                address
            }
            Err(error) => {
                self.known().pod_ip_denied = matches!(error.status(), Some(401 | 403));
                None
            }
        }
    }

    async fn refused(&self, answer: Response<Incoming>, operation: String) -> ClientError {
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ERROR).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let (code, message) = words(status, &body);
        let name = self.inner.name.clone();
        ClientError::Refused { name, operation, status: status.as_u16(), code, message, body }
    }

    /// One unary gRPC call: the message in, the message out.
    pub async fn grpc(
        &self,
        port: u16,
        path: &str,
        message: Vec<u8>,
        limit: Duration,
        operation: &str,
    ) -> Result<Bytes, ClientError> {
        crate::grpc::unary(self, port, path, message, limit, operation).await
    }

    pub(crate) async fn send_http2(
        &self,
        path: &str,
        port: u16,
        headers: HeaderMap,
        limit: Duration,
        body: Bytes,
    ) -> Result<Result<Response<Incoming>, HttpError>, ClientError> {
        let request = self.request(&Method::POST, path, headers, Some(limit), None, Some(port), full(body)).await?;
        let sent = self.inner.http2.request(request.0).await;
        if sent.is_err() {
            self.forget();
        }
        Ok(sent)
    }
}

/// Statuses that a router or an overloaded daemon answers with for a while.
fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

fn not_a_name(text: &str) -> ClientError {
    ClientError::Invalid(format!("{text:?} cannot be the name of a sandbox"))
}

/// The message in an error's body, whoever wrote it.
fn words(status: StatusCode, body: &[u8]) -> (Option<agent_sandbox_protocol::native::ErrorCode>, String) {
    if let Ok(said) = serde_json::from_slice::<ErrorBody>(body) {
        return (Some(said.code), said.message);
    }
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let member = |name: &str| value[name].as_str().map(str::to_owned);
    if let (Some(code), Some(message)) = (member("code"), member("message")) {
        return (None, format!("{code}: {message}"));
    }
    let text = member("message").or_else(|| member("detail"));
    let text = text.unwrap_or_else(|| String::from_utf8_lossy(body).trim().chars().take(512).collect());
    (None, if text.is_empty() { status.canonical_reason().unwrap_or("no reason given").to_owned() } else { text })
}

/// An error of ours that travelled through the HTTP client as a connection's failure.
pub(crate) fn typed(error: HttpError) -> Option<ClientError> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(&error);
    while let Some(cause) = next {
        if let Some(known) = cause.downcast_ref::<ClientError>() {
            return match known {
                ClientError::NoRouter { tried } => Some(ClientError::NoRouter { tried: tried.clone() }),
                ClientError::Suspended { name } => Some(ClientError::Suspended { name: name.clone() }),
                ClientError::NotRunning { name, last } => {
                    Some(ClientError::NotRunning { name: name.clone(), last: last.clone() })
                }
                ClientError::Dial { name, port, message } => {
                    Some(ClientError::Dial { name: name.clone(), port: *port, message: message.clone() })
                }
                _ => None,
            };
        }
        next = cause.source();
    }
    None
}

/// An error and everything behind it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

fn extra_headers(pairs: &[(String, String)]) -> Result<HeaderMap, ClientError> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        if name.to_ascii_lowercase().starts_with("x-sandbox-") {
            let message = format!("header {name:?} is reserved: the SDK sets X-Sandbox-* itself");
            return Err(ClientError::Invalid(message));
        }
        let invalid = || ClientError::Invalid(format!("{name:?} with that value is not a header"));
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        headers.insert(parsed, HeaderValue::from_str(value).map_err(|_| invalid())?);
    }
    Ok(headers)
}

/// Seconds as the shortest decimal.
fn seconds(duration: Duration) -> String {
    let seconds = (duration.as_secs_f64().max(0.001) * 1000.0).round() / 1000.0;
    seconds.to_string()
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// The address to prefer: IPv4, in its shortest form; what is no address is skipped.
pub fn select_pod_ip(addresses: &[String]) -> Option<String> {
    let parsed =
        || addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok()).map(|address| address.to_canonical());
    let chosen = parsed().find(IpAddr::is_ipv4).or_else(|| parsed().next())?;
    Some(chosen.to_string())
}

pub(crate) fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn streamed(content: ByteStream) -> Body {
    StreamBody::new(content.map_ok(Frame::data)).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_199_ipv4_is_preferred_and_shortened() {
        let list = |addresses: &[&str]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(select_pod_ip(&list(&["fd00::5", "10.0.0.5"])).as_deref(), Some("10.0.0.5"));
        assert_eq!(select_pod_ip(&list(&["::ffff:10.0.0.6"])).as_deref(), Some("10.0.0.6"));
        assert_eq!(select_pod_ip(&list(&["x", "fd00:0::5"])).as_deref(), Some("fd00::5"));
        assert_eq!(select_pod_ip(&list(&["x"])), None);
    }

    #[test]
    fn an_error_is_told_in_its_own_words() {
        let said = |body: &str| words(StatusCode::CONFLICT, body.as_bytes());
        assert_eq!(said(r#"{"code":"CONFLICT","message":"m"}"#).1, "CONFLICT: m");
        assert_eq!(said(r#"{"code":"notFound","message":"gone"}"#).1, "gone");
        assert_eq!(said(r#"{"detail":"Not Found"}"#).1, "Not Found");
        assert_eq!(said("plain words\n").1, "plain words");
        assert_eq!(said("").1, "Conflict");
    }

    #[test]
    fn reserved_headers_are_refused() {
        assert!(extra_headers(&[("X-Sandbox-ID".into(), "x".into())]).is_err());
        assert!(extra_headers(&[("Authorization".into(), "Bearer x".into())]).is_ok());
        assert!(extra_headers(&[("a b".into(), "x".into())]).is_err());
    }

    #[test]
    fn d_243_the_timeout_is_the_shortest_decimal() {
        assert_eq!(seconds(Duration::from_secs(10)), "10");
        assert_eq!(seconds(Duration::from_millis(2500)), "2.5");
    }
}
