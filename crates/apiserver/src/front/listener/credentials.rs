//! Long-lived secrets of one API server: its CA, the administrator's token, and the key that signs tokens.
//!
//! They are stored in one file that only the owner can read, so that kubeconfigs and tokens stay valid across restarts.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde::{Deserialize, Serialize};

use super::{ListenerError, private_file};

/// Lifetime of the CA: ten years, so that it rarely has to be renewed.
const CA_LIFETIME: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
/// The CA is renewed this long before it expires.
const CA_RENEWAL: SignedDuration = SignedDuration::from_hours(365 * 24);
/// Certificates are valid from a day in the past, so that a client whose clock is slow accepts them.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(24);

#[derive(Clone, Serialize, Deserialize)]
pub struct Credentials {
    ca_name: String,
    ca_certificate: String,
    ca_key: String,
    ca_expires: Timestamp,
    admin_token: String,
    signing_key: String,
}

/// New secrets that are not written to their file yet. The server may use them before they are saved, but must not give
/// them to clients.
#[must_use]
pub struct UnsavedCredentials {
    path: PathBuf,
    text: Vec<u8>,
}

impl UnsavedCredentials {
    pub fn save(self) -> Result<(), ListenerError> {
        private_file::write(&self.path, &self.text)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("ca_name", &self.ca_name).field("secrets", &"[redacted]").finish()
    }
}

impl Credentials {
    /// Generates secrets that are not stored.
    pub fn generate(name: &str, now: Timestamp) -> Result<Self, ListenerError> {
        let ca_name = format!("{name}-ca");
        let key = KeyPair::generate()?;
        let ca_expires = now + CA_LIFETIME;
        let mut params = ca_params(&ca_name);
        set_validity(&mut params, now, ca_expires);
        Ok(Self {
            ca_certificate: params.self_signed(&key)?.pem(),
            ca_key: key.serialize_pem(),
            ca_name,
            ca_expires,
            admin_token: random_secret(),
            signing_key: random_secret(),
        })
    }

    /// Reads the file at `path`, or generates new secrets, which the caller must save. A CA that is about to expire is
    /// replaced; the tokens are kept.
    pub fn load_or_generate(
        path: &Path,
        name: &str,
        now: Timestamp,
    ) -> Result<(Self, Option<UnsavedCredentials>), ListenerError> {
        let stored = match fs::read(path) {
            Ok(bytes) => Some(Self::parse(path, &bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(ListenerError::File { action: "read", path: path.to_owned(), source }),
        };
        match stored {
            Some(credentials) if now < credentials.ca_expires - CA_RENEWAL => Ok((credentials, None)),
            stored => {
                let mut fresh = Self::generate(name, now)?;
                if let Some(old) = stored {
                    fresh.admin_token = old.admin_token;
                    fresh.signing_key = old.signing_key;
                }
                let text = serde_json::to_vec_pretty(&fresh).expect("strings and a time are always JSON");
                Ok((fresh, Some(UnsavedCredentials { path: path.to_owned(), text })))
            }
        }
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ListenerError> {
        let damaged = |why: String| ListenerError::Damaged { path: path.to_owned(), why };
        let credentials: Self = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        KeyPair::from_pem(&credentials.ca_key).map_err(|error| damaged(error.to_string()))?;
        // An empty admin token would authenticate every request.
        if credentials.admin_token.len() < 32 || credentials.signing_key.len() < 32 {
            return Err(damaged("a secret is too short".into()));
        }
        Ok(credentials)
    }

    /// The same secrets with another token of the administrator.
    pub(crate) fn with_new_admin_token(&self) -> Self {
        Self { admin_token: random_secret(), ..self.clone() }
    }

    /// Writes the secrets to their file.
    pub(crate) fn save(&self, path: &Path) -> Result<(), ListenerError> {
        let text = serde_json::to_vec_pretty(self).expect("strings and a time are always JSON");
        private_file::write(path, &text)
    }

    pub fn ca_certificate(&self) -> &str {
        &self.ca_certificate
    }

    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    pub fn signing_key(&self) -> &[u8] {
        self.signing_key.as_bytes()
    }

    /// The CA as an issuer of server certificates.
    pub(super) fn issuer(&self) -> Result<Issuer<'static, KeyPair>, ListenerError> {
        Ok(Issuer::new(ca_params(&self.ca_name), KeyPair::from_pem(&self.ca_key)?))
    }
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// Validity in whole days, from the day before `from`.
pub(super) fn set_validity(params: &mut CertificateParams, from: Timestamp, until: Timestamp) {
    let day = |time: Timestamp| {
        let date = time.to_zoned(TimeZone::UTC).date();
        rcgen::date_time_ymd(i32::from(date.year()), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = day(from - CLOCK_SKEW);
    params.not_after = day(until);
}

/// 256 random bits as text.
fn random_secret() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load_or_create(path: &Path, now: Timestamp) -> Result<Credentials, ListenerError> {
        let (credentials, unsaved) = Credentials::load_or_generate(path, "test", now)?;
        unsaved.map_or(Ok(()), UnsavedCredentials::save)?;
        Ok(credentials)
    }

    #[test]
    fn secrets_are_kept_across_restarts_and_only_the_owner_can_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pki/credentials.json");
        let now: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        let first = load_or_create(&path, now).unwrap();
        let second = load_or_create(&path, now).unwrap();
        assert_eq!(first.admin_token(), second.admin_token());
        assert_eq!(first.ca_certificate(), second.ca_certificate());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!format!("{first:?}").contains(first.admin_token()));
    }

    #[test]
    fn a_ca_near_expiry_is_replaced_and_tokens_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials.json");
        let now: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        let first = load_or_create(&path, now).unwrap();
        let later = now + SignedDuration::from_hours(9 * 365 * 24 + 24);
        let second = load_or_create(&path, later).unwrap();
        assert_ne!(first.ca_certificate(), second.ca_certificate());
        assert_eq!(first.admin_token(), second.admin_token());
    }

    #[test]
    fn a_damaged_file_is_reported_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials.json");
        let now = Timestamp::UNIX_EPOCH;
        for damage in ["", "{}", "not json"] {
            fs::write(&path, damage).unwrap();
            let error = load_or_create(&path, now).unwrap_err();
            assert!(error.to_string().contains("credentials.json"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damage);
        }
    }
}
