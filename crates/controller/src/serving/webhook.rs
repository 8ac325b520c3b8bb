//! The conversion webhook: every replica serves it, leader or not, before any watch starts.
//!
//! The controller either manages the certificates itself (a Secret shared by the replicas, rotated well before it
//! expires, published to the CRDs) or reads them from files that another component maintains.

mod certificates;
mod convert;
mod external;
mod managed;
mod server;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use self::{
    certificates::{Bundle, CertificateError, ServiceNames},
    convert::review,
    external::{ExternalFiles, choose_files},
    managed::SECRET_NAME,
    server::Serving,
};
use crate::serving::metrics::Metrics;

/// Period of the certificate check: of the Secret for rotation by another replica, of files for replacement.
const CHECK_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Where to listen.
    pub address: std::net::SocketAddr,
    pub service: ServiceNames,
    /// Where certificates are written (managed) or read (external).
    pub directory: PathBuf,
    pub source: CertificateSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// Managed by the controller: a Secret, and the CRDs' CA bundle.
    Managed,
    /// Files of these names, maintained by another component.
    External { certificate: String, key: String },
}

#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("cannot listen on {address}")]
    Listen { address: std::net::SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(
        "Secret {secret} changed during each of {attempts} attempts to write the webhook certificate; \
         look for another controller that writes it"
    )]
    Contended { secret: &'static str, attempts: usize },
    #[error("cannot {doing}")]
    Api { doing: &'static str, source: Box<kube::Error> },
}

/// A running webhook.
pub struct Webhook {
    /// The address it listens on.
    pub address: std::net::SocketAddr,
}

impl Webhook {
    /// Prepares certificates, starts to listen, and keeps both up to date until `stop` is cancelled.
    pub async fn start(
        client: kube::Client,
        config: WebhookConfig,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Result<Self, WebhookError> {
        let bundle = load(&client, &config).await?;
        let serving = Serving::new(&bundle)?;
        metrics.certificate_read(true);
        let address = server::listen(&config, serving.clone(), metrics.clone(), stop.clone()).await?;
        info!(%address, "Conversion webhook is listening");
        tokio::spawn(keep_fresh(client, config, serving, metrics, stop));
        Ok(Self { address })
    }
}

/// The current certificate: in managed mode created, adopted or rotated, and published to the CRDs before any replica
/// serves it.
async fn load(client: &kube::Client, config: &WebhookConfig) -> Result<Bundle, WebhookError> {
    match &config.source {
        CertificateSource::Managed => {
            let bundle = managed::ensure(client, config, jiff::Timestamp::now()).await?;
            managed::publish(client, config, &bundle).await?;
            Ok(bundle)
        }
        CertificateSource::External { certificate, key } => {
            let files = choose_files(&config.directory, certificate, key)?;
            Ok(files.read()?)
        }
    }
}

async fn keep_fresh(
    client: kube::Client,
    config: WebhookConfig,
    serving: Serving,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(CHECK_EVERY) => {}
            () = stop.cancelled() => return,
        }
        let renewed = match load(&client, &config).await {
            Ok(bundle) => serving.replace(&bundle).map_err(WebhookError::from),
            Err(error) => Err(error),
        };
        metrics.certificate_read(renewed.is_ok());
        if let Err(error) = renewed {
            warn!(%error, "Could not renew the webhook certificate; keeping the current one");
        }
    }
}

#[cfg(test)]
mod tests;
