//! TLS for clients: certificates that can be replaced while the router runs, and optional client certificates.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::{ClientAuth, TlsConfig};

/// Why TLS cannot be set up from the configured files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read certificates from {path}")]
    Certificates { path: PathBuf, source: rustls_pki_types::pem::Error },
    #[error("{path} holds no certificate")]
    NoCertificate { path: PathBuf },
    #[error("cannot read a private key from {path}")]
    Key { path: PathBuf, source: rustls_pki_types::pem::Error },
    #[error("certificate {cert} and key {key} cannot be used together")]
    Pair { cert: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("client CA bundle {path} cannot be used")]
    ClientCa { path: PathBuf, source: rustls::server::VerifierBuilderError },
    #[error("client CA certificate in {path} cannot be used")]
    ClientCaCertificate { path: PathBuf, source: rustls::Error },
    #[error("TLS versions are not supported")]
    Versions(#[source] rustls::Error),
}

/// Accepts TLS connections with the current certificate.
#[derive(Clone)]
pub struct Acceptor {
    config: TlsConfig,
    current: Arc<ArcSwap<ServerConfig>>,
}

impl Acceptor {
    /// Reads the files. An error in them is fatal here, in contrast to [`Acceptor::reload`].
    pub fn load(config: TlsConfig) -> Result<Self, TlsError> {
        let current = Arc::new(ArcSwap::from_pointee(server_config(&config)?));
        Ok(Self { config, current })
    }

    /// Reads the files again; on failure the current certificates stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.current.store(Arc::new(server_config(&self.config)?));
        Ok(())
    }

    /// The files to watch for changes.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![self.config.cert_file.clone(), self.config.key_file.clone()];
        if let ClientAuth::Optional { ca_file } | ClientAuth::Required { ca_file } = &self.config.client_auth {
            files.push(ca_file.clone());
        }
        files
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.current.load_full()).accept(stream).await
    }
}

fn server_config(config: &TlsConfig) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(TlsError::Versions)?;
    let builder = match &config.client_auth {
        ClientAuth::Off => builder.with_no_client_auth(),
        ClientAuth::Optional { ca_file } | ClientAuth::Required { ca_file } => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(client_roots(ca_file)?), provider);
            let verifier = match &config.client_auth {
                ClientAuth::Optional { .. } => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier.build().map_err(|source| TlsError::ClientCa { path: ca_file.clone(), source })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates(&config.cert_file)?;
    let key = PrivateKeyDer::from_pem_file(&config.key_file)
        .map_err(|source| TlsError::Key { path: config.key_file.clone(), source })?;
    let mut server = builder.with_single_cert(chain, key).map_err(|source| TlsError::Pair {
        cert: config.cert_file.clone(),
        key: config.key_file.clone(),
        source,
    })?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(server)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| TlsError::Certificates { path: path.to_owned(), source })?;
    if chain.is_empty() { Err(TlsError::NoCertificate { path: path.to_owned() }) } else { Ok(chain) }
}

fn client_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| TlsError::ClientCaCertificate { path: path.to_owned(), source })?;
    }
    Ok(roots)
}
