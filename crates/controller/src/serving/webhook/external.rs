//! Certificates from files that another component maintains, such as cert-manager.

use std::path::{Path, PathBuf};

use super::certificates::{Bundle, CertificateError};

/// The default file names, and the combined file that replaces both when neither exists.
const DEFAULT_NAMES: (&str, &str) = ("tls.crt", "tls.key");
const COMBINED: &str = "cert.pem";

/// Paths of certificate and key; the same file when it holds both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Finds the files. The combined file is used only instead of the default pair, and only when both files of the pair
/// are absent.
pub fn choose_files(directory: &Path, certificate: &str, key: &str) -> Result<ExternalFiles, CertificateError> {
    let pair = ExternalFiles { certificate: directory.join(certificate), key: directory.join(key) };
    let absent = |path: &Path| !path.exists();
    let combined = directory.join(COMBINED);
    let files = if (certificate, key) == DEFAULT_NAMES
        && absent(&pair.certificate)
        && absent(&pair.key)
        && combined.is_file()
    {
        ExternalFiles { certificate: combined.clone(), key: combined }
    } else {
        pair
    };
    for path in [&files.certificate, &files.key] {
        if !path.is_file() {
            return Err(CertificateError::NotAFile { path: path.clone() });
        }
    }
    Ok(files)
}

impl ExternalFiles {
    /// Reads both files. The CA is not known.
    pub fn read(&self) -> Result<Bundle, CertificateError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| CertificateError::File {
                doing: "read",
                path: path.to_owned(),
                source,
            })
        };
        Ok(Bundle { ca: Vec::new(), certificate: read(&self.certificate)?, key: read(&self.key)? })
    }
}
