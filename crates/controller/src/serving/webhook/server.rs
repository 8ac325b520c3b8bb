//! The TLS listener of the webhook.

use std::{fmt, sync::Arc, time::Duration};

use axum::{Router, body::Bytes, extract::DefaultBodyLimit, response::IntoResponse, routing::post};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    WebhookConfig, WebhookError,
    certificates::{Bundle, CertificateError, provider},
    convert::review,
};
use crate::serving::metrics::Metrics;

/// Maximum body size: an API server sends whole lists for conversion.
const MAX_BODY: usize = 64 << 20;
/// Maximum number of connections, more than any set of API servers opens.
const MAX_CONNECTIONS: usize = 256;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The certificate in use; replacing it affects new connections.
#[derive(Clone)]
pub struct Serving(Arc<RwLock<Arc<CertifiedKey>>>);

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Serving")
    }
}

impl Serving {
    pub fn new(bundle: &Bundle) -> Result<Self, CertificateError> {
        Ok(Self(Arc::new(RwLock::new(Arc::new(bundle.certified_key()?)))))
    }

    pub fn replace(&self, bundle: &Bundle) -> Result<(), CertificateError> {
        *self.0.write() = Arc::new(bundle.certified_key()?);
        Ok(())
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

/// Starts to listen; connections end when `stop` is cancelled.
pub(super) async fn listen(
    config: &WebhookConfig,
    serving: Serving,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<std::net::SocketAddr, WebhookError> {
    let failed = |source| WebhookError::Listen { address: config.address, source };
    let listener = TcpListener::bind(config.address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let mut tls = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(CertificateError::Unusable)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(serving));
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let router = Router::new()
        .route(
            "/convert",
            post(move |body: Bytes| async move {
                let (status, response) = review(&body);
                metrics.webhook_called(status);
                (status, axum::Json(response)).into_response()
            }),
        )
        .layer(DefaultBodyLimit::max(MAX_BODY));
    tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), router, stop));
    Ok(address)
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, router: Router, stop: CancellationToken) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    debug!(%error, "Could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = stop.cancelled() => return,
        };
        let (tls, router, stop) = (tls.clone(), router.clone(), stop.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await else { return };
            let builder = auto::Builder::new(TokioExecutor::new());
            let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            tokio::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = tokio::time::timeout(HANDSHAKE_TIMEOUT, connection).await;
                }
            }
        });
    }
}
