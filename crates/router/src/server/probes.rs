//! The router's own endpoints: health, readiness and metrics, on separate ports. Health and readiness answer under any
//! name, because they say nothing else; metrics only under names that a web page's own domain cannot have.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::observability::metrics;
use crate::state::Shared;

/// Which endpoints a port serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminPort {
    Probes,
    Metrics,
}

/// Responds to `/healthz` and `/readyz`.
pub(crate) fn respond(shared: &Shared, path: &str) -> Response<Bytes> {
    match path {
        "/healthz" => reply(StatusCode::OK, "application/json", "{\"status\":\"ok\"}".into()),
        "/readyz" if shared.draining.load(Ordering::Relaxed) => unready("draining"),
        "/readyz" if !shared.is_ready() => unready("starting"),
        "/readyz" => reply(StatusCode::OK, "text/plain", "ok".into()),
        _ => reply(StatusCode::NOT_FOUND, "text/plain", "not found".into()),
    }
}

fn unready(why: &'static str) -> Response<Bytes> {
    reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", why.into())
}

fn reply(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn metrics_page<B>(shared: &Shared, request: &Request<B>) -> Response<Bytes> {
    let config = &shared.config;
    match config.allowed_hosts.or_private(config.cluster_domain.clone()).check(request) {
        Ok(()) => reply(StatusCode::OK, metrics::CONTENT_TYPE, shared.metrics.render().into()),
        Err(error) => reply(error.status(), "text/plain", format!("{error}\n").into()),
    }
}

/// Serves a probe or metrics port until `stop`, which comes after the drain, so that probes see it.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener, port: AdminPort, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Most likely out of descriptors; the listener itself is fine.
            tokio::time::sleep(crate::server::ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let (shared, stop) = (Arc::clone(&shared), stop.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = match (port, request.uri().path()) {
                    (AdminPort::Metrics, "/metrics") => metrics_page(&shared, &request),
                    (_, path) => respond(&shared, path),
                };
                std::future::ready(Ok::<_, Infallible>(response.map(Full::new)))
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                () = stop.cancelled() => {}
                result = connection => if let Err(error) = result {
                    tracing::debug!(%error, "Probe connection ended");
                }
            }
        });
    }
}
