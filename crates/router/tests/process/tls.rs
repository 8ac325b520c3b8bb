//! HTTPS, client certificates, and certificates that change while the router runs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::child::*;

/// A certificate authority of a test.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

struct Issued {
    cert: String,
    key: String,
    der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    fn issue(&self) -> Issued {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Issued { cert: cert.pem(), key: key.serialize_pem(), der: cert.der().clone(), key_der: key.serialize_der() }
    }

    fn pem(&self) -> String {
        self.issuer.pem()
    }

    fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }
}

fn write_pair(dir: &Path, issued: &Issued) {
    std::fs::write(dir.join("tls.crt"), &issued.cert).unwrap();
    std::fs::write(dir.join("tls.key"), &issued.key).unwrap();
}

async fn start(dir: &Path, mtls: &str) -> (RouterProcess, u16) {
    let port = free_port();
    let file = |name: &str| dir.join(name).display().to_string();
    let arguments = [
        "--http-bind-address=".to_owned(),
        format!("--https-bind-address=127.0.0.1:{port}"),
        "--metrics-bind-address=".to_owned(),
        "--health-probe-bind-address=".to_owned(),
        format!("--tls-cert-file={}", file("tls.crt")),
        format!("--tls-key-file={}", file("tls.key")),
        format!("--tls-client-ca-file={}", file("ca.crt")),
        format!("--mtls-mode={mtls}"),
    ];
    let router = RouterProcess::start(&arguments.each_ref().map(String::as_str));
    router.wait_ready().await;
    (router, port)
}

/// A health check over TLS: the server's certificate on success.
async fn handshake(
    port: u16,
    trusted: &[CertificateDer<'static>],
    identity: Option<&Issued>,
) -> Option<CertificateDer<'static>> {
    let mut roots = RootCertStore::empty();
    for root in trusted {
        roots.add(root.clone()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match identity {
        Some(identity) => {
            let key = PrivateKeyDer::try_from(identity.key_der.clone()).unwrap();
            builder.with_client_auth_cert(vec![identity.der.clone()], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect(local(port)).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.ok()?;
    assert_eq!(&answer, b"HTTP/1.1 200");
    stream.get_ref().1.peer_certificates().map(|chain| chain[0].clone().into_owned())
}

/// D-163
#[tokio::test]
async fn client_certificates_are_asked_for_as_configured() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path(), &authority.issue());
    std::fs::write(dir.path().join("ca.crt"), authority.pem()).unwrap();
    let (trusted, stranger) = (authority.issue(), foreign.issue());
    let roots = [authority.der()];
    let (_required, port) = start(dir.path(), "required").await;
    assert!(handshake(port, &roots, None).await.is_none());
    assert!(handshake(port, &roots, Some(&stranger)).await.is_none());
    assert!(handshake(port, &roots, Some(&trusted)).await.is_some());
    let (_optional, port) = start(dir.path(), "optional").await;
    assert!(handshake(port, &roots, None).await.is_some());
    assert!(handshake(port, &roots, Some(&stranger)).await.is_none());
    assert!(handshake(port, &roots, Some(&trusted)).await.is_some());
}

/// D-164
#[tokio::test]
async fn new_certificates_are_used_within_a_second_and_broken_ones_never() {
    let authority = Authority::new();
    let roots = [authority.der()];
    let dir = tempfile::tempdir().unwrap();
    let first = authority.issue();
    // The layout of a projected volume in Kubernetes: names point through `..data`.
    let version = |name: &str, issued: &Issued| {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        write_pair(&dir.path().join(name), issued);
    };
    version("..v1", &first);
    std::os::unix::fs::symlink("..v1", dir.path().join("..data")).unwrap();
    for file in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(format!("..data/{file}"), dir.path().join(file)).unwrap();
    }
    let (router, port) = start(dir.path(), "off").await;
    assert_eq!(handshake(port, &roots, None).await, Some(first.der.clone()));

    let second = authority.issue();
    version("..v2", &second);
    std::os::unix::fs::symlink("..v2", dir.path().join("..data_tmp")).unwrap();
    std::fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    let swapped = Instant::now();
    router.wait_for("Reloaded").await;
    assert!(swapped.elapsed() < Duration::from_secs(1), "{:?}", swapped.elapsed());
    assert_eq!(handshake(port, &roots, None).await, Some(second.der.clone()));

    std::fs::create_dir(dir.path().join("..v3")).unwrap();
    std::fs::write(dir.path().join("..v3/tls.crt"), "broken").unwrap();
    std::fs::write(dir.path().join("..v3/tls.key"), &first.key).unwrap();
    std::os::unix::fs::symlink("..v3", dir.path().join("..data_tmp")).unwrap();
    std::fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    router.wait_for("Reload failed").await;
    assert_eq!(handshake(port, &roots, None).await, Some(second.der.clone()));

    // Plain files, replaced by rename, one after the other.
    for file in ["tls.crt", "tls.key"] {
        let text = if file == "tls.crt" { &first.cert } else { &first.key };
        std::fs::write(dir.path().join("new"), text).unwrap();
        std::fs::rename(dir.path().join("new"), dir.path().join(file)).unwrap();
    }
    let deadline = Instant::now() + TIMEOUT;
    while handshake(port, &roots, None).await.as_ref() != Some(&first.der) {
        assert!(Instant::now() < deadline, "a rename is noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
