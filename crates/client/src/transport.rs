//! The transport to one sandbox: pooled connections, router headers, deadlines, and retries where they are safe.

mod addressing;
mod error_response;
mod sending;

use crate::{
    ClientError, Connection, TraceContext,
    call::{Body, full},
    connection::ROUTER_NAMESPACE,
    dial::Dialer,
};
use addressing::{AddressCache, Route};
use agent_sandbox_protocol::router_headers as names;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client as HttpClient, Error as HttpError},
    rt::{TokioExecutor, TokioTimer},
};
use kube::Client;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

pub use addressing::select_pod_ip;
pub(crate) use error_response::{client_error_in, error_chain};

/// Time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Connection pools, shared by sandboxes behind the same router. Clones share the pools.
#[derive(Clone)]
pub(crate) struct ConnectionPools {
    http: HttpClient<Dialer, Body>,
    /// For gRPC, which needs HTTP/2.
    http2: HttpClient<Dialer, Body>,
}

impl ConnectionPools {
    fn new(dialer: Dialer) -> Self {
        let http = HttpClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(dialer.clone());
        let http2 = HttpClient::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .http2_only(true)
            .build(dialer);
        Self { http, http2 }
    }
}

/// Sends requests to one sandbox. Clones share connections.
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
    pools: ConnectionPools,
    headers: HeaderMap,
    trace: Option<TraceContext>,
    /// Whether `X-Sandbox-Pod-IP` is sent.
    send_pod_ip: bool,
    addresses: Mutex<AddressCache>,
}

/// Options of a transport.
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
        Self::with_pools(options, None)
    }

    /// Like [`new`](Self::new), with the connection pools of another sandbox behind the same router.
    pub(crate) fn with_pools(options: TransportOptions, pools: Option<ConnectionPools>) -> Result<Self, ClientError> {
        let pools = match pools {
            Some(pools) => pools,
            None => ConnectionPools::new(dialer(&options)?),
        };
        let mut headers = HeaderMap::new();
        let route = match &options.connection {
            Connection::Direct(direct) => {
                headers = extra_headers(&direct.headers)?;
                Route::Router { base: direct.url.trim_end_matches('/').to_owned() }
            }
            Connection::Tunnel(_) => Route::Tunnel,
            Connection::Gateway(gateway) => Route::Gateway { client: needs_kube(&options)?, options: gateway.clone() },
            Connection::PodTunnel => Route::Daemon { address: None },
            Connection::InCluster(address) => Route::Daemon { address: Some(*address) },
        };
        Ok(Self::assemble(options, route, pools, headers))
    }

    /// The connection pools, if other sandboxes may use them: only if all connections lead to a router.
    pub(crate) fn pools(&self) -> Option<ConnectionPools> {
        matches!(self.inner.route, Route::Router { .. } | Route::Gateway { .. }).then(|| self.inner.pools.clone())
    }

    /// Sets the sandbox's known Pod IPs, which saves a lookup.
    pub(crate) fn set_pod_ips(&self, addresses: &[String]) {
        self.set_pod_ip(select_pod_ip(addresses));
    }

    /// A transport to the daemon of a Pod, through the API's port-forward.
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
        Self::assemble(options, Route::Daemon { address: None }, ConnectionPools::new(dialer), HeaderMap::new())
    }

    fn assemble(options: TransportOptions, route: Route, pools: ConnectionPools, headers: HeaderMap) -> Self {
        let TransportOptions { name, namespace, port, kube, trace, send_pod_ip, .. } = options;
        let addresses = Mutex::default();
        let inner = Inner { name, namespace, port, kube, route, pools, headers, trace, send_pod_ip, addresses };
        Self { inner: Arc::new(inner) }
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Sends one unary gRPC call and returns the response message.
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
        let sent = self.inner.pools.http2.request(request.0).await;
        if sent.is_err() {
            self.clear_addresses();
        }
        Ok(sent)
    }
}

fn needs_kube(options: &TransportOptions) -> Result<Client, ClientError> {
    let message = "this connection type needs access to the Kubernetes API";
    options.kube.clone().ok_or_else(|| ClientError::Invalid(message.to_owned()))
}

/// The dialer for new connections.
fn dialer(options: &TransportOptions) -> Result<Dialer, ClientError> {
    Ok(match &options.connection {
        Connection::Direct(direct) if direct.url.starts_with("https://") => Dialer::tls(direct)?,
        Connection::Direct(_) | Connection::Gateway(_) | Connection::InCluster(_) => Dialer::plain(),
        Connection::Tunnel(tunnel) => {
            let mut namespaces = vec![tunnel.router_namespace.clone().unwrap_or_else(|| ROUTER_NAMESPACE.to_owned())];
            if namespaces[0] != options.namespace {
                namespaces.push(options.namespace.clone());
            }
            let (namespace, sandbox) = (options.namespace.clone(), options.name.clone());
            Dialer::Router { client: needs_kube(options)?, namespaces, namespace, sandbox }
        }
        Connection::PodTunnel => {
            let (namespace, sandbox) = (options.namespace.clone(), options.name.clone());
            Dialer::Sandbox { client: needs_kube(options)?, namespace, sandbox }
        }
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_headers_are_refused() {
        assert!(extra_headers(&[("X-Sandbox-ID".into(), "x".into())]).is_err());
        assert!(extra_headers(&[("Authorization".into(), "Bearer x".into())]).is_ok());
        assert!(extra_headers(&[("a b".into(), "x".into())]).is_err());
    }
}
