//! The router as a process: bind everything, watch, serve, reload, drain.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::authz::AuthzConfig;
use crate::config::ProcessConfig;
use crate::file_watch::FileWatch;
use crate::index::watch::FIRST_LIST_DEADLINE;
use crate::otlp;
use crate::router::{Deps, Router, RouterSetupError};
use crate::tls::{Acceptor, TlsError};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Why the process cannot run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot listen on {address}")]
    Bind { address: String, source: io::Error },
    #[error("cannot read Kubernetes client configuration {path}")]
    Kubeconfig { path: PathBuf, source: kube::config::KubeconfigError },
    #[error("no Kubernetes client configuration was found")]
    NoKubeconfig(#[source] kube::config::InferConfigError),
    #[error("cannot make a Kubernetes client")]
    Client(#[source] kube::Error),
    #[error("TLS is not set up")]
    Tls(#[from] TlsError),
    #[error("cannot watch certificate and secret files")]
    Watch(#[source] io::Error),
    #[error("the router is not set up")]
    Setup(#[from] RouterSetupError),
    #[error(
        "the first list of Pods did not arrive within {FIRST_LIST_DEADLINE:?}; is the API reachable, and may this account list Pods?"
    )]
    FirstList,
    #[error("span export is not set up")]
    Otlp(#[from] otlp::OtlpError),
}

/// The ports of a process, all bound before any is served.
struct Ports {
    http: Option<TcpListener>,
    https: Option<TcpListener>,
    metrics: Option<TcpListener>,
    probes: Option<TcpListener>,
}

impl Ports {
    fn bind(config: &ProcessConfig) -> Result<Self, RunError> {
        let bind = |address: Option<&str>| {
            let listen = |address: &str| {
                listen(address).map_err(|source| RunError::Bind { address: address.to_owned(), source })
            };
            address.map(listen).transpose()
        };
        Ok(Self {
            http: bind(config.http_bind.as_deref())?,
            https: bind(config.https.as_ref().map(|https| https.bind.as_str()))?,
            metrics: bind(config.metrics_bind.as_deref())?,
            probes: bind(config.probe_bind.as_deref())?,
        })
    }
}

/// Runs the router until `shutdown`, then drains it.
pub async fn run_router(config: ProcessConfig, shutdown: CancellationToken) -> Result<(), RunError> {
    let ports = Ports::bind(&config)?;
    let tls = config.https.as_ref().map(|https| Acceptor::load(https.tls.clone())).transpose()?;
    let needs_client =
        config.watch_pods || matches!(&config.router.authz, AuthzConfig::AnyOf(modes) if modes.token_review.is_some());
    let client = if needs_client { Some(connect_api(&config).await?) } else { None };
    let deps = Deps {
        trace_endpoint: config.trace_endpoint.clone(),
        metrics_endpoint: config.metrics_endpoint.clone(),
        watch_pods: config.watch_pods,
        client,
        ..Deps::detached()
    };
    if matches!(config.router.authz, AuthzConfig::AllowAll) {
        tracing::warn!("Every caller may reach every sandbox (--authz-mode allow-all)");
    }
    let router = Arc::new(Router::new(config.router.clone(), deps)?);

    // The small ports live until the very end, so that probes see the drain.
    let end = CancellationToken::new();
    let _end = end.clone().drop_guard();
    spawn_small_ports(&router, ports.metrics, ports.probes, &end);
    spawn_reloads(&router, tls.as_ref(), &end)?;
    router.start_exporters(&end)?;

    router.watch(&end);
    let first_list = tokio::time::timeout(FIRST_LIST_DEADLINE, router.wait_synced());
    tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        listed = first_list => listed.map_err(|_| RunError::FirstList)?,
    }
    tracing::info!(http = config.http_bind, https = tls.is_some(), sandboxes = router.index().len(), "Router is ready");
    let http = async {
        if let Some(listener) = ports.http {
            router.serve(listener, shutdown.clone()).await;
        }
    };
    let https = async {
        if let (Some(listener), Some(tls)) = (ports.https, tls) {
            router.serve_tls(listener, tls, shutdown.clone()).await;
        }
    };
    futures::future::join(http, https).await;
    Ok(())
}

fn spawn_small_ports(
    router: &Arc<Router>,
    metrics: Option<TcpListener>,
    probes: Option<TcpListener>,
    end: &CancellationToken,
) {
    if let Some(listener) = metrics {
        let (router, end) = (Arc::clone(router), end.clone());
        tokio::spawn(async move { router.serve_metrics(listener, end).await });
    }
    if let Some(listener) = probes {
        let (router, end) = (Arc::clone(router), end.clone());
        tokio::spawn(async move { router.serve_probes(listener, end).await });
    }
}

/// Reloads certificates and secrets when their files change.
fn spawn_reloads(router: &Arc<Router>, tls: Option<&Acceptor>, end: &CancellationToken) -> Result<(), RunError> {
    if let Some(tls) = tls {
        let watch = FileWatch::new(&tls.files()).map_err(RunError::Watch)?;
        let (tls, metrics) = (tls.clone(), Arc::clone(router));
        tokio::spawn(reload_on_change(watch, end.clone(), "certificate", move || {
            let result = tls.reload();
            metrics.count_cert_reload(result.is_ok());
            result
        }));
    }
    if let Some(secrets) = router.secrets() {
        let watch = FileWatch::new(secrets.paths()).map_err(RunError::Watch)?;
        let secrets = Arc::clone(secrets);
        tokio::spawn(reload_on_change(watch, end.clone(), "scoped-token secret", move || secrets.reload()));
    }
    Ok(())
}

async fn reload_on_change<E: std::error::Error>(
    mut watch: FileWatch,
    end: CancellationToken,
    what: &'static str,
    reload: impl Fn() -> Result<(), E>,
) {
    loop {
        let changed = tokio::select! {
            () = end.cancelled() => return,
            changed = watch.changed() => changed,
        };
        if let Err(error) = changed {
            tracing::error!(%error, what, "Files are no longer watched; restart the router to pick up changes");
            return;
        }
        match reload() {
            Ok(()) => tracing::info!(what, "Reloaded"),
            Err(error) => {
                let cause = error.source().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(%error, cause, what, "Reload failed; the old one stays in use");
            }
        }
    }
}

async fn connect_api(config: &ProcessConfig) -> Result<Client, RunError> {
    let config = match &config.kubeconfig {
        Some(path) => {
            let failed = |source| RunError::Kubeconfig { path: path.clone(), source };
            let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(failed)?
        }
        None => kube::Config::infer().await.map_err(RunError::NoKubeconfig)?,
    };
    Client::try_from(config).map_err(RunError::Client)
}

/// Listens on `host:port`; without a host on every address, IPv6 included where there is any.
fn listen(address: &str) -> io::Result<TcpListener> {
    if let Some(port) = address.strip_prefix(':') {
        let port: u16 = port.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "port is no number"))?;
        return match listen_on((std::net::Ipv6Addr::UNSPECIFIED, port).into()) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                listen_on((std::net::Ipv4Addr::UNSPECIFIED, port).into())
            }
            result => result,
        };
    }
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "address names nothing; write host:port or :port");
    for address in std::net::ToSocketAddrs::to_socket_addrs(address)? {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen_on(address: std::net::SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
