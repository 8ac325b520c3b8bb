//! The router process: bind all listeners, watch Pods, serve, reload files, drain.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use agent_sandbox_telemetry::audit::{self, AuditConfig, AuditLog};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::auth::AuthzConfig;
use crate::config::ProcessConfig;
use crate::config::file_watch::FileWatch;
use crate::observability::otlp;
use crate::resolve::index::watch::FIRST_LIST_DEADLINE;
use crate::router::{Deps, Router, RouterSetupError};
use crate::server::tls::{Acceptor, TlsError};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// Why the process could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot listen on {address}")]
    Bind { address: String, source: io::Error },
    #[error("cannot read Kubernetes client configuration {path}")]
    Kubeconfig { path: PathBuf, source: kube::config::KubeconfigError },
    #[error("no Kubernetes client configuration was found")]
    NoKubeconfig(#[source] kube::config::InferConfigError),
    #[error("cannot create a Kubernetes client")]
    Client(#[source] kube::Error),
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
    #[error("cannot watch certificate and secret files")]
    Watch(#[source] io::Error),
    #[error("cannot set up the router")]
    Setup(#[from] RouterSetupError),
    #[error(
        "the first list of Pods did not arrive within {FIRST_LIST_DEADLINE:?}; is the API reachable, and may this account list Pods?"
    )]
    FirstList,
    #[error("cannot set up OTLP export")]
    Otlp(#[from] otlp::OtlpError),
    #[error("cannot set up the audit log")]
    Audit(#[from] audit::OpenError),
}

/// The listeners of the process, all bound before any is served.
struct Listeners {
    http: Option<TcpListener>,
    https: Option<TcpListener>,
    metrics: Option<TcpListener>,
    probes: Option<TcpListener>,
}

impl Listeners {
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
    let listeners = Listeners::bind(&config)?;
    let tls = config.https.as_ref().map(|https| Acceptor::load(https.tls.clone())).transpose()?;
    let needs_client =
        config.watch_pods || matches!(&config.router.authz, AuthzConfig::AnyOf(modes) if modes.token_review.is_some());
    let client = if needs_client { Some(connect_api(&config).await?) } else { None };
    let audit = config.audit.as_ref().map(AuditConfig::open).transpose()?;
    let outcome = serve(config, listeners, tls, client, audit.clone(), shutdown).await;
    if let Some(audit) = audit {
        // Tasks that end with the process still hold the log.
        audit.flush().await;
    }
    outcome
}

async fn serve(
    config: ProcessConfig,
    listeners: Listeners,
    tls: Option<Acceptor>,
    client: Option<Client>,
    audit: Option<AuditLog>,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let deps = Deps {
        audit,
        trace_endpoint: config.trace_endpoint.clone(),
        metrics_endpoint: config.metrics_endpoint.clone(),
        watch_pods: config.watch_pods,
        sleep: config.sleep,
        client,
        ..Deps::detached()
    };
    if matches!(config.router.authz, AuthzConfig::AllowAll) {
        tracing::warn!("Every caller may reach every sandbox (--authz-mode allow-all)");
    }
    let router = Arc::new(Router::new(config.router.clone(), deps)?);

    // The metrics and probe ports are served until the end, so that probes see the drain.
    let end = CancellationToken::new();
    let _end = end.clone().drop_guard();
    spawn_admin_ports(&router, listeners.metrics, listeners.probes, &end);
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
        if let Some(listener) = listeners.http {
            router.serve(listener, shutdown.clone()).await;
        }
    };
    let https = async {
        if let (Some(listener), Some(tls)) = (listeners.https, tls) {
            router.serve_tls(listener, tls, shutdown.clone()).await;
        }
    };
    futures::future::join(http, https).await;
    Ok(())
}

fn spawn_admin_ports(
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
                tracing::warn!(%error, cause, what, "Reload failed; the current one stays in use");
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

/// Listens on `host:port`; without a host on all addresses, IPv4 and, where available, IPv6.
fn listen(address: &str) -> io::Result<TcpListener> {
    if let Some(port) = address.strip_prefix(':') {
        let port: u16 = port
            .parse()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the port is not a number between 0 and 65535"))?;
        return match listen_on((std::net::Ipv6Addr::UNSPECIFIED, port).into()) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                listen_on((std::net::Ipv4Addr::UNSPECIFIED, port).into())
            }
            result => result,
        };
    }
    let mut last =
        io::Error::new(io::ErrorKind::InvalidInput, "the address resolves to nothing; write host:port or :port");
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
