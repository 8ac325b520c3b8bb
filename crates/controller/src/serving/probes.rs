//! The HTTP endpoints for metrics, health and readiness.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use agent_sandbox_protocol::web::AllowedHosts;
use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header},
    response::IntoResponse as _,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::serving::metrics::Metrics;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether this process is ready: its webhook listens and the CRDs point to it.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// `/metrics`, for clients that call this server by one of `hosts`: a page whose own domain was made to resolve to this
/// address must not read it.
pub fn metrics_page(metrics: Arc<Metrics>, hosts: AllowedHosts) -> Router {
    let respond = move |request: Request| async move {
        match hosts.check(&request) {
            Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics.render()).into_response(),
            Err(error) => (error.status(), format!("{error}\n")).into_response(),
        }
    };
    Router::new().route("/metrics", get(respond))
}

/// `/healthz` and `/readyz`, which say nothing else and answer under any name, with the sub-checks controller-runtime has.
pub fn health_pages(readiness: Readiness) -> Router {
    let alive = || async { "ok" };
    let ready = move || {
        let readiness = readiness.clone();
        async move {
            if readiness.is_ready() { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "starting") }
        }
    };
    Router::new()
        .route("/healthz", get(alive))
        .route("/healthz/healthz", get(alive))
        .route("/readyz", get(ready.clone()))
        .route("/readyz/readyz", get(ready))
}

/// Serves the endpoints until `stop` is cancelled; returns the address actually listened on.
pub async fn serve(
    what: &'static str,
    address: SocketAddr,
    pages: Router,
    stop: CancellationToken,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    info!(%address, what, "Listening");
    tokio::spawn(async move {
        let served = axum::serve(listener, pages).with_graceful_shutdown(async move { stop.cancelled().await }).await;
        if let Err(error) = served {
            warn!(%error, what, "Stopped listening");
        }
    });
    Ok(address)
}
