//! Pulls images from registries. Users who create Pods see the errors, and the server that a reference names may be
//! any HTTP server that this machine reaches: no text of its error responses is part of them.

use std::collections::BTreeSet;

use futures::TryStreamExt;
use http::StatusCode;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::{OciDistributionError, OciEnvelope, OciErrorCode};
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use tokio::sync::watch;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::layer::{self, LayerDigests};
use super::manifest::{ConfigFile, Descriptor};
use super::pull_guard::{Permission, PullGuard};
use super::pull_proxy::{OperatorProxies, ProxySettings};
use super::{ImageStore, StoredImage};
use crate::runtime::{ImageError, PullProgress, RegistryCredentials};

/// Parses a reference; `name`, `name:tag`, `registry/name@digest`, …
pub(super) fn parse(reference: &str) -> Result<Reference, ImageError> {
    reference.parse().map_err(|_| ImageError::InvalidReference(reference.to_owned()))
}

/// Pulls an image and unpacks the layers that are not in the store.
pub(super) async fn pull(
    store: &ImageStore,
    reference: &str,
    name: &Reference,
    credentials: &[RegistryCredentials],
    progress: Option<watch::Sender<PullProgress>>,
) -> Result<StoredImage, ImageError> {
    // Fails when the process has already installed a provider; any is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let failed = |error: &dyn std::fmt::Display| ImageError::Pull {
        reference: reference.to_owned(),
        message: error.to_string(),
    };
    let mut name = name.clone();
    if let Some((_, mirror)) = store.mirrors.iter().find(|(registry, _)| registry == name.registry()) {
        name.set_mirror_registry(mirror.clone());
    }
    let auth = auth_for(name.registry(), credentials);
    let OperatorProxies { https, http } = ProxySettings::from_env().for_registry(name.resolve_registry());
    let guard = match (&https, &http) {
        (Some(_), Some(_)) => None,
        _ => Some(start_guard(store, &name).await.map_err(|error| failed(&error))?),
    };
    let failed = |error: &dyn std::fmt::Display| match guard.as_ref().and_then(PullGuard::refused) {
        Some(refused) => failed(&refused),
        None => failed(error),
    };
    let guarded = || guard.as_ref().map(|guard| guard.url.clone());
    let client = Client::try_from(ClientConfig {
        protocol: protocol_for(name.resolve_registry()),
        https_proxy: https.or_else(guarded),
        http_proxy: http.or_else(guarded),
        ..ClientConfig::default()
    });
    let client = client.map_err(|error| failed(&error))?;
    let (manifest, digest, config) =
        client.pull_manifest_and_config(&name, &auth).await.map_err(|error| failed(&describe(error)))?;
    let config: ConfigFile = serde_json::from_str(&config).map_err(|error| failed(&error))?;
    config.check_platform(reference)?;
    let descriptors: Vec<_> = manifest.layers.iter().map(descriptor).collect();
    let layers = config.layers(reference, &descriptors)?;
    let total = descriptors.iter().map(|layer| layer.size).sum();
    let mut done = 0;
    let report = |done| {
        if let Some(progress) = &progress {
            progress.send_replace(PullProgress { done, total });
        }
    };
    report(done);
    for ((digests, wanted), layer) in layers.iter().zip(&descriptors).zip(&manifest.layers) {
        let here = layer::layer_path(&store.dir, &digests.diff_id).is_some_and(|path| path.exists());
        if !here {
            let (before, progress) = (done, progress.clone());
            let arrived = move |bytes| {
                if let Some(progress) = &progress {
                    progress.send_replace(PullProgress { done: total.min(before + bytes), total });
                }
            };
            let fetched = fetch(store, reference, &client, &name, layer, digests.clone(), arrived).await;
            fetched.map_err(|error| match guard.as_ref().and_then(PullGuard::refused) {
                Some(refused) => failed(&refused),
                None => error,
            })?;
        }
        done += wanted.size;
        report(done);
    }
    Ok(StoredImage { digest, diff_ids: config.diff_ids().to_vec(), config: config.image_config() })
}

/// The guard of a pull, for what the operator's own proxies do not connect to.
async fn start_guard(store: &ImageStore, name: &Reference) -> std::io::Result<PullGuard> {
    let registry = name.resolve_registry();
    let configured = store.mirrors.iter().any(|(named, mirror)| named == registry || mirror == registry);
    let port = if matches!(protocol_for(registry), ClientProtocol::Http) { 80 } else { 443 };
    PullGuard::start(Permission::new(registry, port, configured)).await
}

fn descriptor(layer: &OciDescriptor) -> Descriptor {
    Descriptor {
        media_type: layer.media_type.clone(),
        digest: layer.digest.clone(),
        size: layer.size.unsigned_abs(),
        platform: None,
    }
}

async fn fetch(
    store: &ImageStore,
    reference: &str,
    client: &Client,
    name: &Reference,
    descriptor: &OciDescriptor,
    digests: LayerDigests,
    arrived: impl Fn(u64) + Send + 'static,
) -> Result<(), ImageError> {
    let failed = |error: &dyn std::fmt::Display| ImageError::Pull {
        reference: reference.to_owned(),
        message: error.to_string(),
    };
    let blob = client.pull_blob_stream(name, descriptor).await.map_err(|error| failed(&describe(error)))?;
    let mut bytes = 0;
    let counted = blob.stream.inspect_ok(move |chunk| {
        bytes += chunk.len() as u64;
        arrived(bytes);
    });
    let reader = SyncIoBridge::new(StreamReader::new(counted));
    let (dir, owned, privileged) = (store.dir.clone(), reference.to_owned(), store.privileged);
    // Unpacking needs disk and CPU, so a blocking thread reads the stream.
    tokio::task::spawn_blocking(move || layer::store(&dir, &owned, &digests, reader, privileged))
        .await
        .map_err(|error| failed(&error))?
        .map(drop)
}

/// An error without text of the server's responses: bodies, and URLs, which redirects choose.
fn describe(error: OciDistributionError) -> String {
    use OciDistributionError as Error;
    match error {
        Error::ServerError { code, .. } => answered(code),
        Error::UnauthorizedError { .. } => answered(StatusCode::UNAUTHORIZED.as_u16()),
        Error::RegistryError { envelope, .. } => {
            format!("the registry refused the request (status 4xx){}", known_codes(&envelope))
        }
        Error::AuthenticationFailure(body) => {
            let codes = serde_json::from_str(&body).map(|envelope| known_codes(&envelope)).unwrap_or_default();
            format!("the token server of the registry refused the request{codes}; check the credentials")
        }
        Error::RequestError(error) => error.without_url().to_string(),
        Error::RegistryTokenDecodeError(_) => "the response of the registry's token server is not a token".to_owned(),
        Error::ManifestParsingError(_) | Error::VersionedParsingError(_) | Error::JsonError(_) => {
            "the response of the registry is not a manifest".to_owned()
        }
        other => other.to_string(),
    }
}

fn answered(code: u16) -> String {
    let reason = StatusCode::from_u16(code).ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
    format!("the registry responded with status {code} {reason}").trim_end().to_owned()
}

/// The codes of the distribution specification in an error response, after a colon.
fn known_codes(envelope: &OciEnvelope) -> String {
    let known = envelope.errors.iter().map(|error| &error.code).filter(|code| !matches!(code, OciErrorCode::Other(_)));
    let names = known.filter_map(|code| Some(serde_json::to_value(code).ok()?.as_str()?.to_owned()));
    let names: Vec<String> = names.collect::<BTreeSet<_>>().into_iter().collect();
    if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) }
}

fn auth_for(registry: &str, credentials: &[RegistryCredentials]) -> RegistryAuth {
    credentials
        .iter()
        .find(|entry| entry.registry.trim_start_matches("https://").trim_end_matches('/') == registry)
        .map_or(RegistryAuth::Anonymous, |entry| RegistryAuth::Basic(entry.username.clone(), entry.password.clone()))
}

/// Registries on this machine may use plain HTTP; all others must use TLS.
fn protocol_for(registry: &str) -> ClientProtocol {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    let local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if local { ClientProtocol::Http } else { ClientProtocol::Https }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registries_of_this_machine_use_plain_http() {
        for local in ["localhost:5000", "127.0.0.1:5000", "localhost"] {
            assert!(matches!(protocol_for(local), ClientProtocol::Http), "{local}");
        }
        for remote in ["registry.example", "10.0.0.1:5000", "127.0.0.1.example:5000"] {
            assert!(matches!(protocol_for(remote), ClientProtocol::Https), "{remote}");
        }
    }

    #[test]
    fn errors_have_status_and_known_codes_but_no_text_of_the_server() {
        use OciDistributionError as Error;
        let url = || "http://127.0.0.1:80/v2/?secret".to_owned();
        let body = r#"{"errors": [{"code": "NAME_UNKNOWN", "message": "secret", "detail": "secret"},
            {"code": "secret"}, {"code": "TOOMANYREQUESTS"}, {"code": "NAME_UNKNOWN"}]}"#;
        let envelope = |text: &str| serde_json::from_str::<OciEnvelope>(text).unwrap();
        let no_number = serde_json::from_str::<u8>("\"secret\"").unwrap_err();
        assert!(no_number.to_string().contains("secret"), "parsers repeat what they read");
        let refused = "the token server of the registry refused the request";
        for (error, wanted) in [
            (
                Error::ServerError { code: 404, url: url(), message: "secret".into() },
                "the registry responded with status 404 Not Found".to_owned(),
            ),
            (
                Error::ServerError { code: 799, url: url(), message: "secret".into() },
                "the registry responded with status 799".to_owned(),
            ),
            (Error::UnauthorizedError { url: url() }, "the registry responded with status 401 Unauthorized".to_owned()),
            (
                Error::RegistryError { envelope: envelope(body), url: url() },
                "the registry refused the request (status 4xx): NAME_UNKNOWN, TOOMANYREQUESTS".to_owned(),
            ),
            (
                Error::RegistryError { envelope: envelope(r#"{"errors": [{"code": "secret"}]}"#), url: url() },
                "the registry refused the request (status 4xx)".to_owned(),
            ),
            (
                Error::AuthenticationFailure(r#"{"errors": [{"code": "DENIED", "message": "secret"}]}"#.into()),
                format!("{refused}: DENIED; check the credentials"),
            ),
            (Error::AuthenticationFailure("secret".into()), format!("{refused}; check the credentials")),
            (
                Error::VersionedParsingError(no_number.to_string()),
                "the response of the registry is not a manifest".to_owned(),
            ),
            (
                Error::RegistryTokenDecodeError(no_number.to_string()),
                "the response of the registry's token server is not a token".to_owned(),
            ),
        ] {
            assert_eq!(describe(error), wanted);
        }
    }

    #[test]
    fn credentials_go_to_their_own_registry_only() {
        let credentials =
            [RegistryCredentials { registry: "https://a.example/".into(), username: "u".into(), password: "p".into() }];
        assert!(matches!(auth_for("a.example", &credentials), RegistryAuth::Basic(..)));
        assert!(matches!(auth_for("b.example", &credentials), RegistryAuth::Anonymous));
    }

    #[test]
    fn invalid_references_are_reported() {
        assert!(matches!(parse("UPPER case"), Err(ImageError::InvalidReference(text)) if text == "UPPER case"));
    }
}
