//! Generates and checks certificates.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};

/// Validity of a certificate.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long before its creation a certificate becomes valid, because clocks differ.
const BACKDATE: Duration = Duration::from_secs(3600);
/// A certificate is replaced when less than this is left: weeks in which an operator can notice that rotation fails.
const RENEW_BEFORE: Duration = Duration::from_secs(60 * 24 * 3600);

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The wording is upstream's; users search for it.
    #[error("secret {secret:?} has invalid certificate data in key {key:?}; delete it and it will be made anew")]
    InvalidSecret { secret: String, key: &'static str },
    #[error("{path:?} is not a file that holds a certificate or key")]
    NotAFile { path: std::path::PathBuf },
    #[error("cannot {doing} {path:?}")]
    File { doing: &'static str, path: std::path::PathBuf, source: std::io::Error },
    #[error("cannot make a certificate")]
    Generate(#[from] rcgen::Error),
    #[error("certificate and key cannot be used for TLS")]
    Unusable(#[source] rustls::Error),
    #[error("the PEM text holds no usable {0}")]
    Pem(&'static str),
}

/// The Service that the API server calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNames {
    pub name: String,
    pub namespace: String,
    pub cluster_domain: String,
}

impl ServiceNames {
    /// The names under which the Service can be reached.
    pub fn dns_names(&self) -> [String; 4] {
        let Self { name, namespace, cluster_domain } = self;
        [
            name.clone(),
            format!("{name}.{namespace}"),
            format!("{name}.{namespace}.svc"),
            format!("{name}.{namespace}.svc.{cluster_domain}"),
        ]
    }
}

/// A CA bundle with a server certificate and its key, all PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Bundle {
    pub ca: Vec<u8>,
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bundle")
            .field("certificate", &String::from_utf8_lossy(&self.certificate))
            .field("key", &"[redacted]")
            .finish()
    }
}

impl Bundle {
    /// A new CA, and a certificate of it for the Service. The CA's key is discarded: nothing else will ever be signed
    /// with it.
    pub fn generate(names: &ServiceNames, now: Timestamp) -> Result<Self, CertificateError> {
        let window = |params: &mut CertificateParams| {
            let at = |time: Timestamp| std::time::SystemTime::from(time).into();
            params.not_before = at(now - BACKDATE);
            params.not_after = at(now + VALIDITY);
        };
        let mut ca = CertificateParams::default();
        window(&mut ca);
        ca.distinguished_name = named("agent-sandbox-conversion-webhook-ca");
        ca.serial_number = Some(SerialNumber::from(1_u64));
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca_key = KeyPair::generate()?;
        let ca_certificate = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);

        let dns_names = names.dns_names();
        let mut leaf = CertificateParams::new(dns_names.to_vec())?;
        window(&mut leaf);
        leaf.distinguished_name = named(&dns_names[2]);
        leaf.serial_number = Some(SerialNumber::from(2_u64));
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &issuer)?;
        Ok(Self {
            ca: ca_certificate.pem().into_bytes(),
            certificate: certificate.pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
        })
    }

    /// Whether the certificate is signed by its CA, names the Service, and stays valid for at least [`RENEW_BEFORE`].
    pub fn is_good(&self, names: &ServiceNames, now: Timestamp) -> bool {
        let verify = || -> Option<()> {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(&self.ca).ok()?);
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().ok()?;
            let chain = certificates(&self.certificate).ok()?;
            let (leaf, intermediates) = chain.split_first()?;
            for at in [now, now + RENEW_BEFORE] {
                let at = UnixTime::since_unix_epoch(Duration::from_secs(at.as_second().try_into().ok()?));
                for name in names.dns_names() {
                    let name = ServerName::try_from(name).ok()?;
                    verifier.verify_server_cert(leaf, intermediates, &name, &[], at).ok()?;
                }
            }
            Some(())
        };
        verify().is_some()
    }

    /// The same certificate, with an earlier CA added to the bundle: replicas that still serve the old certificate stay
    /// trusted.
    #[must_use]
    pub fn trusting_also(mut self, earlier: &[u8]) -> Self {
        // Only the newest of the earlier CAs: the bundle must not grow with every rotation.
        if let Some(newest) = first_pem_block(earlier) {
            self.ca.extend_from_slice(newest);
        }
        self
    }

    /// The certificate and key in the form that rustls needs.
    pub fn certified_key(&self) -> Result<CertifiedKey, CertificateError> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| CertificateError::Pem("private key"))?;
        CertifiedKey::from_der(chain, key, &provider()).map_err(CertificateError::Unusable)
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| CertificateError::Pem("certificate"))?;
    if chain.is_empty() { Err(CertificateError::Pem("certificate")) } else { Ok(chain) }
}

/// Whether the text holds at least one PEM block.
pub(super) fn is_pem(text: &[u8]) -> bool {
    first_pem_block(text).is_some()
}

fn first_pem_block(pem: &[u8]) -> Option<&[u8]> {
    let text = std::str::from_utf8(pem).ok()?;
    let start = text.find("-----BEGIN ")?;
    let tail = text[start..].find("-----END ")? + start;
    let end = text[tail + 9..].find("-----").map(|at| tail + 9 + at + 5)?;
    let end = if text[end..].starts_with('\n') { end + 1 } else { end };
    Some(&pem[start..end])
}
