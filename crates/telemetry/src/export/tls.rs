//! TLS to a collector: the machine's own certificate authorities, or those of the file that SSL_CERT_FILE names.

use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;

/// A connector for HTTP/2 over TLS only, with the system's certificate authorities.
pub(super) fn with_system_roots() -> std::io::Result<HttpsConnector<HttpConnector>> {
    let builder = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider())?;
    Ok(builder.https_only().enable_http2().build())
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A connector for HTTP/2 over TLS only, with the given certificate authorities.
#[cfg(test)]
pub(super) fn with_roots(roots: rustls::RootCertStore) -> HttpsConnector<HttpConnector> {
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http2().build()
}
