//! A router between a client and a backend, all on loopback; what the router dials is recorded and redirected.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_router::{Connector, Deps, Endpoint, PodFacts, Router, RouterConfig, Stream};
use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Timeout for every wait of the tests; far beyond what any step takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// The address of every sandbox Pod in these tests.
pub(crate) const POD_IP: &str = "10.0.0.7";

/// A request as a backend received it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// An HTTP server that records requests and gives them all the same response.
pub(crate) struct Backend {
    pub(crate) addr: SocketAddr,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    stop: CancellationToken,
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Backend {
    /// Responds 200 with the request's body.
    pub(crate) async fn echo() -> Self {
        Self::answering(|seen| Response::new(Full::new(seen.body.clone()))).await
    }

    pub(crate) async fn answering<F>(answer: F) -> Self
    where
        F: Fn(&Seen) -> Response<Full<Bytes>> + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, answer)
    }

    pub(crate) fn on<F>(listener: TcpListener, answer: F) -> Self
    where
        F: Fn(&Seen) -> Response<Full<Bytes>> + Send + Sync + 'static,
    {
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stop = CancellationToken::new();
        let (record, stopped, answer) = (Arc::clone(&seen), stop.clone(), Arc::new(answer));
        tokio::spawn(async move {
            loop {
                let (stream, _) = tokio::select! {
                    () = stopped.cancelled() => return,
                    accepted = listener.accept() => accepted.unwrap(),
                };
                let (record, answer) = (Arc::clone(&record), Arc::clone(&answer));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (record, answer) = (Arc::clone(&record), Arc::clone(&answer));
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await?.to_bytes();
                        let seen = Seen {
                            method: parts.method.to_string(),
                            target: parts.uri.to_string(),
                            headers: parts.headers,
                            body,
                        };
                        let response = answer(&seen);
                        record.lock().push(seen);
                        Ok::<_, hyper::Error>(response)
                    }
                });
                let stopped = stopped.clone();
                tokio::spawn(async move {
                    let connection = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    tokio::select! {
                        () = stopped.cancelled() => {}
                        _ = connection.serve_connection(TokioIo::new(stream), service) => {}
                    }
                });
            }
        });
        Self { addr, seen, stop }
    }

    pub(crate) fn only(&self) -> Seen {
        let seen = self.seen.lock();
        assert_eq!(seen.len(), 1, "exactly one request reaches the backend");
        seen[0].clone()
    }
}

/// What happens to the recorded dials.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DialOutcome {
    To(SocketAddr),
    Fails(io::ErrorKind),
    /// Never completes.
    Hangs,
}

/// Records what the router dials, then dials what the test wants.
pub(crate) struct RecordingConnector {
    pub(crate) dialled: Mutex<Vec<SocketAddr>>,
    pub(crate) outcome: Mutex<DialOutcome>,
}

#[async_trait]
impl Connector for RecordingConnector {
    async fn connect(&self, endpoint: &Endpoint) -> io::Result<Stream> {
        self.dialled.lock().push(endpoint.addr);
        let outcome = *self.outcome.lock();
        match outcome {
            DialOutcome::To(addr) => Ok(TcpStream::connect(addr).await?.into()),
            DialOutcome::Fails(kind) => Err(kind.into()),
            DialOutcome::Hangs => std::future::pending().await,
        }
    }
}

/// A running router.
pub(crate) struct TestRouter {
    pub(crate) addr: SocketAddr,
    pub(crate) router: Arc<Router>,
    pub(crate) connect: Arc<RecordingConnector>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) served: tokio::task::JoinHandle<()>,
}

impl Drop for TestRouter {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.served.abort();
    }
}

/// Facts about a ready Pod of `sandbox` in `default`.
pub(crate) fn pod(sandbox: &str, ip: &str) -> PodFacts {
    PodFacts {
        namespace: "default".to_owned(),
        sandbox: sandbox.to_owned(),
        sandbox_uid: format!("uid-{sandbox}"),
        pod: format!("{sandbox}-pod"),
        pod_uid: format!("pod-uid-{sandbox}"),
        ips: vec![ip.parse().unwrap()],
        name_routable: true,
        idle: None,
        e2b: None,
    }
}

/// A configuration for tests: as in production, but without access log and DNS.
pub(crate) fn quiet() -> RouterConfig {
    RouterConfig { access_log: false, cluster_domain: None, ..RouterConfig::default() }
}

impl TestRouter {
    /// A router in front of `backend`, which is the sandbox `box`.
    pub(crate) async fn before(backend: SocketAddr) -> Self {
        Self::with(quiet(), backend).await
    }

    pub(crate) async fn with(config: RouterConfig, backend: SocketAddr) -> Self {
        Self::with_deps(config, backend, Deps::detached()).await
    }

    pub(crate) async fn with_deps(config: RouterConfig, backend: SocketAddr, deps: Deps) -> Self {
        let connect =
            Arc::new(RecordingConnector { dialled: Mutex::default(), outcome: Mutex::new(DialOutcome::To(backend)) });
        let deps = Deps { connector: Arc::clone(&connect) as Arc<dyn Connector>, ..deps };
        let router = Arc::new(Router::new(config, deps).unwrap());
        router.index().replace_all(vec![pod("box", POD_IP)]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let (serving, stop) = (Arc::clone(&router), shutdown.clone());
        let served = tokio::spawn(async move { serving.serve(listener, stop).await });
        Self { addr, router, connect, shutdown, served }
    }

    /// A request to sandbox `box`.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path).header("x-sandbox-id", "box").body(Full::default()).unwrap()).await
    }

    /// A request to sandbox `box` with more headers.
    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Request::get(path).header("x-sandbox-id", "box");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::default()).unwrap()).await
    }

    /// Any request, on a new connection.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        tokio::time::timeout(TIMEOUT, send(self.addr, request)).await.expect("the router answers in time")
    }

    pub(crate) fn dialled(&self) -> Vec<SocketAddr> {
        self.connect.dialled.lock().clone()
    }
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The `detail` of an error response; also asserts the contract's error format.
    pub(crate) fn detail(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/json");
        assert!(self.body.ends_with(b"\n"));
        let value: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        value["detail"].as_str().unwrap().to_owned()
    }
}

/// Sends one HTTP/1.1 request on a new connection.
pub(crate) async fn send(addr: SocketAddr, mut request: Request<Full<Bytes>>) -> Reply {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    if !request.headers().contains_key("host") {
        request.headers_mut().insert("host", addr.to_string().parse().unwrap());
    }
    let response = sender.send_request(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Reply { status: parts.status, headers: parts.headers, body: body.collect().await.unwrap().to_bytes() }
}

/// Sends raw bytes and reads until the router closes the connection or sends nothing for `quiet`.
pub(crate) async fn raw(addr: SocketAddr, bytes: &[u8], quiet: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(Ok(count)) = tokio::time::timeout(quiet, stream.read(&mut buffer)).await {
        if count == 0 {
            break;
        }
        answer.extend_from_slice(&buffer[..count]);
    }
    answer
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what} does not come about");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The current value of one metric series; 0 if it does not exist.
pub(crate) fn metric(router: &TestRouter, series: &str) -> f64 {
    let text = router.router.render_metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
    line.map_or(0.0, |value| value.parse().unwrap())
}
