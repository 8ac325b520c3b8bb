//! The server certificate: signed by the server's own CA, short-lived, renewed while the server runs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::ListenerError;
use super::credentials::{Credentials, set_validity};

const LIFETIME: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Interval of expiry checks. A machine that was suspended past the expiry has a new certificate within this time.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Host names that clients of any Kubernetes API server may use.
const NAMES: [&str; 5] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];

/// Provides the current certificate for each new connection.
#[derive(Debug)]
pub struct ServerCertificate {
    current: ArcSwap<CertifiedKey>,
    names: Vec<String>,
    credentials: Credentials,
}

impl ServerCertificate {
    /// `extra_names` are host names or addresses in addition to the loopback ones.
    pub fn issue(credentials: Credentials, extra_names: &[String], now: Timestamp) -> Result<Arc<Self>, ListenerError> {
        let mut names: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        names.extend(["127.0.0.1".to_owned(), "::1".to_owned()]);
        names.extend(extra_names.iter().filter(|name| !is_unspecified(name)).cloned());
        names.dedup();
        let current = ArcSwap::new(sign(&credentials, &names, now)?);
        Ok(Arc::new(Self { current, names, credentials }))
    }

    /// Renews the certificate when it is due; runs until it is cancelled.
    pub async fn renew_periodically(self: Arc<Self>, started: Timestamp) {
        let mut issued = started;
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            issued = self.renew_if_due(issued, Timestamp::now());
        }
    }

    /// Returns the issue time of the certificate that is in use after this call.
    fn renew_if_due(&self, issued: Timestamp, now: Timestamp) -> Timestamp {
        // If the clock was set back, the certificate is not valid yet, so it is due as well.
        if now < issued + LIFETIME / 2 && now > issued - CLOCK_SKEW {
            return issued;
        }
        match sign(&self.credentials, &self.names, now) {
            Ok(renewed) => {
                self.current.store(renewed);
                tracing::info!("Renewed the server certificate");
                now
            }
            Err(error) => {
                tracing::warn!(%error, "Could not renew the server certificate");
                issued
            }
        }
    }
}

fn is_unspecified(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn sign(credentials: &Credentials, names: &[String], now: Timestamp) -> Result<Arc<CertifiedKey>, ListenerError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now, now + LIFETIME);
    let certificate = params.signed_by(&key, &credentials.issuer()?)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let signer = ring::sign::any_supported_type(&private)?;
    Ok(Arc::new(CertifiedKey::new(vec![certificate.der().clone()], signer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_half_its_lifetime() {
        let now: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        let credentials = Credentials::generate("test", now).unwrap();
        let certificate = ServerCertificate::issue(credentials, &["0.0.0.0".into(), "box.local".into()], now).unwrap();
        let first = certificate.current.load_full();
        assert_eq!(certificate.renew_if_due(now, now + LIFETIME / 2 - CLOCK_SKEW), now);
        assert!(Arc::ptr_eq(&first, &certificate.current.load_full()));
        let later = now + LIFETIME / 2 + CLOCK_SKEW;
        assert_eq!(certificate.renew_if_due(now, later), later);
        assert!(!Arc::ptr_eq(&first, &certificate.current.load_full()));
        assert!(certificate.names.contains(&"box.local".to_owned()));
        assert!(!certificate.names.contains(&"0.0.0.0".to_owned()));
    }
}
