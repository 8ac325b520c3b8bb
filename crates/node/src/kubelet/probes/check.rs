//! One attempt of a probe or a lifecycle hook: HTTP, TCP, gRPC, exec or sleep.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

use crate::runtime::{ExecRequest, SharedRuntime};

mod tls;

/// The action of a probe or hook.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Check {
    Http { port: u16, path: String, tls: bool, headers: Vec<(String, String)> },
    Tcp { port: u16 },
    Grpc { port: u16, service: String },
    Exec { command: Vec<String> },
    Sleep { duration: Duration },
}

/// A failed attempt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckFailure {
    pub message: String,
    /// The connection was refused: another attempt is cheap.
    pub refused: bool,
}

impl CheckFailure {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), refused: false }
    }
}

/// The container that is checked.
#[derive(Clone)]
pub struct CheckTarget {
    pub runtime: SharedRuntime,
    pub pod: String,
    pub container: String,
    /// The Pod's address; without one, connections are made from inside the Pod's network namespace.
    pub ip: Option<IpAddr>,
}

/// Why a check cannot be attempted at all.
pub type InvalidCheck = String;

impl Check {
    /// The check of a probe, with port names resolved.
    pub fn of_probe(probe: &Probe, container: &Container) -> Result<Self, InvalidCheck> {
        if let Some(grpc) = &probe.grpc {
            let port = u16::try_from(grpc.port).map_err(|_| format!("port {} is not a port", grpc.port))?;
            return Ok(Self::Grpc { port, service: grpc.service.clone().unwrap_or_default() });
        }
        Self::of_parts(probe.http_get.as_ref(), probe.tcp_socket.as_ref(), probe.exec.as_ref(), container)
    }

    /// The check of a lifecycle hook.
    pub fn of_hook(hook: &LifecycleHandler, container: &Container) -> Result<Self, InvalidCheck> {
        if let Some(sleep) = &hook.sleep {
            return Ok(Self::Sleep { duration: Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0)) });
        }
        Self::of_parts(hook.http_get.as_ref(), hook.tcp_socket.as_ref(), hook.exec.as_ref(), container)
    }

    fn of_parts(
        http: Option<&HTTPGetAction>,
        tcp: Option<&TCPSocketAction>,
        exec: Option<&ExecAction>,
        container: &Container,
    ) -> Result<Self, InvalidCheck> {
        if let Some(http) = http {
            let headers = http.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
            let path = http.path.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "/".to_owned());
            let path = if path.starts_with('/') { path } else { format!("/{path}") };
            let tls = http.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https"));
            return Ok(Self::Http { port: resolve_port(&http.port, container)?, path, tls, headers });
        }
        if let Some(tcp) = tcp {
            return Ok(Self::Tcp { port: resolve_port(&tcp.port, container)? });
        }
        match exec.and_then(|e| e.command.clone()).filter(|c| !c.is_empty()) {
            Some(command) => Ok(Self::Exec { command }),
            None => Err("no handler is given".to_owned()),
        }
    }

    /// Makes one attempt with this timeout.
    pub async fn attempt(&self, target: &CheckTarget, timeout: Duration) -> Result<(), CheckFailure> {
        match tokio::time::timeout(timeout, self.attempt_unbounded(target)).await {
            Ok(result) => result,
            Err(_) => Err(CheckFailure::new(format!("timed out after {timeout:?}"))),
        }
    }

    async fn attempt_unbounded(&self, target: &CheckTarget) -> Result<(), CheckFailure> {
        match self {
            Self::Tcp { port } => connect(target, *port).await.map(drop),
            Self::Http { port, path, tls, headers } => {
                let stream = connect(target, *port).await?;
                let authority = authority(target, *port);
                if *tls {
                    let stream = tls::handshake(stream).await.map_err(|e| CheckFailure::new(format!("TLS: {e}")))?;
                    http_get(stream, &authority, path, headers).await
                } else {
                    http_get(stream, &authority, path, headers).await
                }
            }
            Self::Grpc { port, service } => {
                let stream = connect(target, *port).await?;
                grpc_health(stream, &authority(target, *port), service).await
            }
            Self::Exec { command } => run_command(target, command).await,
            Self::Sleep { duration } => {
                tokio::time::sleep(*duration).await;
                Ok(())
            }
        }
    }
}

fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, InvalidCheck> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => {
                let named = container.ports.iter().flatten().find(|p| p.name.as_deref() == Some(name));
                named.map(|p| p.container_port).ok_or_else(|| format!("container has no port named {name:?}"))?
            }
        },
    };
    u16::try_from(number).ok().filter(|p| *p > 0).ok_or_else(|| format!("port {number} is not a port"))
}

fn authority(target: &CheckTarget, port: u16) -> String {
    target.ip.map_or_else(|| format!("localhost:{port}"), |ip| SocketAddr::new(ip, port).to_string())
}

async fn connect(target: &CheckTarget, port: u16) -> Result<TcpStream, CheckFailure> {
    match target.ip {
        Some(ip) => TcpStream::connect((ip, port)).await.map_err(|error| CheckFailure {
            refused: error.kind() == std::io::ErrorKind::ConnectionRefused,
            message: format!("dial tcp {ip}:{port}: {error}"),
        }),
        None => target
            .runtime
            .dial(&target.pod, port)
            .await
            .map_err(|error| CheckFailure { refused: true, message: format!("dial port {port}: {error}") }),
    }
}

/// Maximum number of bytes that are read of a response or a command's output.
const MAX_RESPONSE_BYTES: usize = 10 * 1024;

async fn http_get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    authority: &str,
    path: &str,
    headers: &[(String, String)],
) -> Result<(), CheckFailure> {
    let fail = |what: &dyn std::fmt::Display| CheckFailure::new(format!("HTTP probe: {what}"));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| fail(&e))?;
    let connection = tokio::spawn(connection);
    let _owner = AbortOnDrop(connection.abort_handle());
    let mut request = http::Request::get(path).header("user-agent", "kube-probe/1.36").header("accept", "*/*");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header("host", authority);
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| fail(&e))?;
    let response = sender.send_request(request).await.map_err(|e| fail(&e))?;
    let status = response.status();
    if status.as_u16() < 400 && status.as_u16() >= 200 {
        return Ok(());
    }
    Err(CheckFailure::new(format!("HTTP probe failed with statuscode: {}", status.as_u16())))
}

/// Calls the gRPC health service. The two small messages are encoded by hand.
async fn grpc_health(stream: TcpStream, authority: &str, service: &str) -> Result<(), CheckFailure> {
    let fail = |what: &dyn std::fmt::Display| CheckFailure::new(format!("gRPC probe: {what}"));
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|e| fail(&e))?;
    let connection = tokio::spawn(connection);
    let _owner = AbortOnDrop(connection.abort_handle());
    let request = http::Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(health_request(service)))
        .map_err(|e| fail(&e))?;
    let response = sender.send_request(request).await.map_err(|e| fail(&e))?;
    let early = response.headers().get("grpc-status").cloned();
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await.map_err(|e| fail(&e))?;
    let trailer = body.trailers().and_then(|t| t.get("grpc-status")).cloned();
    let code = early.or(trailer);
    if let Some(code) = code.filter(|c| c != "0") {
        return Err(CheckFailure::new(format!("gRPC probe failed with code {}", code.to_str().unwrap_or("?"))));
    }
    match serving_status(&body.to_bytes()) {
        Some(1) => Ok(()),
        other => Err(CheckFailure::new(format!("service unhealthy (responded with {})", other.unwrap_or(0)))),
    }
}

/// Encodes `HealthCheckRequest { service }` as a framed message.
fn health_request(service: &str) -> Bytes {
    let name = &service.as_bytes()[..service.len().min(127)];
    let mut message = Vec::new();
    if !name.is_empty() {
        message.extend([0x0a, name.len() as u8]);
        message.extend(name);
    }
    let mut framed = vec![0, 0, 0, 0, message.len() as u8];
    framed.extend(message);
    framed.into()
}

/// Decodes `status` of a framed `HealthCheckResponse`.
fn serving_status(framed: &[u8]) -> Option<u8> {
    match framed.get(5..) {
        Some([0x08, status, ..]) => Some(*status),
        _ => None,
    }
}

async fn run_command(target: &CheckTarget, command: &[String]) -> Result<(), CheckFailure> {
    let request = ExecRequest { command: command.to_vec(), stdout: true, stderr: true, ..ExecRequest::default() };
    let session = target.runtime.exec(&target.pod, &target.container, request).await;
    let mut session = session.map_err(|error| CheckFailure::new(format!("command could not be run: {error}")))?;
    let output = async {
        let mut text = Vec::new();
        if let Some(stdout) = session.stdout.take() {
            let _ = stdout.take(MAX_RESPONSE_BYTES as u64).read_to_end(&mut text).await;
        }
        if let Some(stderr) = session.stderr.take() {
            let _ = stderr.take(MAX_RESPONSE_BYTES as u64).read_to_end(&mut text).await;
        }
        String::from_utf8_lossy(&text).trim().to_owned()
    };
    let (exit, output) = tokio::join!(session.exit, output);
    match exit {
        Ok(exit) if exit.code == 0 => Ok(()),
        Ok(exit) if output.is_empty() => Err(CheckFailure::new(format!("command exited with {}", exit.code))),
        Ok(_) => Err(CheckFailure::new(output)),
        Err(error) => Err(CheckFailure::new(format!("command was lost: {error}"))),
    }
}

/// Aborts a task when dropped.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests;
