//! Connections to the API server: separate ones for watches, for claims and for everything else, so that none waits for
//! another.
//!
//! kube's own client speaks HTTP/1.1, with one connection per request in flight: a burst of three hundred claims would
//! open hundreds. Here each lane has a fixed number of multiplexed HTTP/2 connections, used in turn. The lane of claims
//! has a few more that are not shared ([`direct`]), for low load.

mod direct;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ClientBuilder, ConfigExt};
use tower::ServiceExt;

use self::direct::{DirectConnections, SendOutcome};
use crate::api_client::Clients;

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

/// Address and credentials of the cluster: from the named kubeconfig, else from the environment.
pub async fn cluster_config(kubeconfig: &str) -> Result<kube::Config, ConnectError> {
    if kubeconfig.is_empty() {
        return kube::Config::infer().await.map_err(|error| ConnectError::Config(Box::new(error)));
    }
    let file =
        kube::config::Kubeconfig::read_from(kubeconfig).map_err(|error| ConnectError::Config(Box::new(error)))?;
    let options = kube::config::KubeConfigOptions::default();
    kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|error| ConnectError::Config(Box::new(error)))
}

/// One client per lane, each over `connections` connections. Watches always have a connection of their own: they are
/// long and few. When more than one connection was requested, there are exactly that many.
pub fn connect(config: &kube::Config, connections: usize) -> Result<Clients, ConnectError> {
    let direct = if connections == 1 { Some(DirectConnections::new(connector(config, Versions::One)?)) } else { None };
    Ok(Clients {
        watch: client(config, 1)?,
        claims: client_with(config, connections, direct)?,
        core: client(config, connections)?,
        refill: client(config, connections)?,
    })
}

/// A client over exactly `connections` connections, used round-robin.
pub fn client(config: &kube::Config, connections: usize) -> Result<kube::Client, ConnectError> {
    client_with(config, connections, None)
}

fn client_with(
    config: &kube::Config,
    connections: usize,
    direct: Option<Arc<DirectConnections>>,
) -> Result<kube::Client, ConnectError> {
    let pools = (0..connections.max(1)).map(|_| http_client(config)).collect::<Result<Vec<_>, _>>()?;
    let (pools, turn): (Arc<[_]>, _) = (pools.into(), Arc::new(AtomicUsize::new(0)));
    let spread = tower::service_fn(move |mut request: http::Request<Body>| {
        let (pools, turn, direct) = (pools.clone(), turn.clone(), direct.clone());
        async move {
            if let Some(direct) = direct {
                match direct.send(request).await {
                    SendOutcome::Response(response) => return response.map_err(tower::BoxError::from),
                    SendOutcome::NotSent(unsent) => request = unsent,
                }
            }
            let pool = pools[turn.fetch_add(1, Ordering::Relaxed) % pools.len()].clone();
            let response = pool.oneshot(request).await.map_err(tower::BoxError::from)?;
            Ok(response.map(BodyExt::boxed_unsync))
        }
    });
    let builder = ClientBuilder::new(spread, config.default_namespace.clone());
    let builder = builder.with_layer(&tower::util::option_layer(config.auth_layer()?));
    Ok(builder.with_layer(&config.extra_headers_layer()?).with_layer(&config.base_uri_layer()).build())
}

/// Which versions of HTTP are offered to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Versions {
    One,
    OneAndTwo,
}

fn connector(config: &kube::Config, versions: Versions) -> Result<HttpsConnector<HttpConnector>, ConnectError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let connector = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    Ok(match versions {
        Versions::One => connector.enable_http1().wrap_connector(tcp),
        Versions::OneAndTwo => connector.enable_all_versions().wrap_connector(tcp),
    })
}

/// One connection: HTTP/2 where TLS offers it, kept alive so that a dead peer is noticed.
fn http_client(config: &kube::Config) -> Result<HttpClient<HttpsConnector<HttpConnector>, Body>, ConnectError> {
    Ok(HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(std::time::Duration::from_secs(30))
        .http2_keep_alive_timeout(std::time::Duration::from_secs(15))
        .http2_keep_alive_while_idle(true)
        .http2_adaptive_window(true)
        .build(connector(config, Versions::OneAndTwo)?))
}
