//! TLS configuration of the server: its certificate, and which client certificates it accepts.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use super::{KubeletServerConfig, KubeletServerError};

pub(super) fn config(config: &KubeletServerConfig) -> Result<Arc<rustls::ServerConfig>, KubeletServerError> {
    let chain = certificates(&config.certificate, "certificate")?;
    let key = PrivateKeyDer::from_pem_slice(&config.key).map_err(|_| KubeletServerError::Pem("key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(KubeletServerError::Tls)?;
    let builder = match &config.client_authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authority, "client authority")? {
                roots.add(certificate).map_err(KubeletServerError::Tls)?;
            }
            // A client without a certificate may use a token; a client with a wrong certificate is rejected.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(KubeletServerError::Verifier)?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut tls = builder.with_single_cert(chain, key).map_err(KubeletServerError::Tls)?;
    // Upgrades to SPDY and WebSocket need HTTP/1.1.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, KubeletServerError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|list| !list.is_empty()).ok_or(KubeletServerError::Pem(what))
}
