//! HTTP/2 connections to the API server: some for watches, some for claims, some for the rest, so that none waits for another.
//!
//! kube's own client speaks HTTP/1.1, one connection per request in flight. A burst of three hundred claims would open hundreds. Here
//! each lane has a fixed number of multiplexed connections, used in turn.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ClientBuilder, ConfigExt};
use tower::ServiceExt;

use crate::kube_ports::Clients;

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot read the cluster's address and credentials")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot use the cluster's credentials")]
    Credentials(#[source] Box<kube::Error>),
}

impl From<kube::Error> for ConnectError {
    fn from(error: kube::Error) -> Self {
        ConnectError::Credentials(Box::new(error))
    }
}

/// Where the cluster is: the named kubeconfig, else what the environment says.
pub async fn cluster_config(kubeconfig: &str) -> Result<kube::Config, ConnectError> {
    if kubeconfig.is_empty() {
        return kube::Config::infer().await.map_err(|error| ConnectError::Config(Box::new(error)));
    }
    let file =
        kube::config::Kubeconfig::read_from(kubeconfig).map_err(|error| ConnectError::Config(Box::new(error)))?;
    let options = kube::config::KubeConfigOptions::default();
    kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|error| ConnectError::Config(Box::new(error)))
}

/// A client per lane, each over `connections` connections. Watches always have one of their own: they are long and few.
pub fn connect(config: &kube::Config, connections: usize) -> Result<Clients, ConnectError> {
    Ok(Clients {
        watch: client(config, 1)?,
        claims: client(config, connections)?,
        core: client(config, connections)?,
        refill: client(config, connections)?,
    })
}

/// A client over exactly so many connections, used round-robin.
pub fn client(config: &kube::Config, connections: usize) -> Result<kube::Client, ConnectError> {
    let pools = (0..connections.max(1)).map(|_| http_client(config)).collect::<Result<Vec<_>, _>>()?;
    let (pools, turn): (Arc<[_]>, _) = (pools.into(), Arc::new(AtomicUsize::new(0)));
    let spread = tower::service_fn(move |request: http::Request<Body>| {
        let pool = pools[turn.fetch_add(1, Ordering::Relaxed) % pools.len()].clone();
        async move { pool.oneshot(request).await.map_err(tower::BoxError::from) }
    });
    let builder = ClientBuilder::new(spread, config.default_namespace.clone());
    let builder = builder.with_layer(&tower::util::option_layer(config.auth_layer()?));
    Ok(builder.with_layer(&config.extra_headers_layer()?).with_layer(&config.base_uri_layer()).build())
}

/// One connection: HTTP/2 where TLS offers it, kept alive so that a dead peer is noticed.
fn http_client(
    config: &kube::Config,
) -> Result<HttpClient<hyper_rustls::HttpsConnector<HttpConnector>, Body>, ConnectError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp);
    Ok(HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(std::time::Duration::from_secs(30))
        .http2_keep_alive_timeout(std::time::Duration::from_secs(15))
        .http2_keep_alive_while_idle(true)
        .http2_adaptive_window(true)
        .build(connector))
}
