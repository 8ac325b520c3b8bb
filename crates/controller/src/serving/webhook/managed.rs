//! Certificates that the controller manages: stored in a Secret that all replicas share, written to the certificate
//! directory, published to the CRDs.

use std::{
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use base64::Engine;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::json;
use tracing::{debug, info};

use super::{
    WebhookConfig, WebhookError,
    certificates::{Bundle, CertificateError, is_pem},
};

pub const SECRET_NAME: &str = "agent-sandbox-webhook-certs";
const KEYS: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const CRDS: [&str; 4] = [
    "sandboxes.agents.x-k8s.io",
    "sandboxclaims.extensions.agents.x-k8s.io",
    "sandboxtemplates.extensions.agents.x-k8s.io",
    "sandboxwarmpools.extensions.agents.x-k8s.io",
];
/// Maximum number of attempts. Another replica may be rotating at the same moment; the second one takes what the first
/// wrote.
const ATTEMPTS: usize = 5;

/// The Secret's certificate if it is valid, else a new one that every replica then shares. Also written to the
/// certificate directory.
pub(super) async fn ensure(client: &Client, config: &WebhookConfig, now: Timestamp) -> Result<Bundle, WebhookError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &config.service.namespace);
    for _ in 0..ATTEMPTS {
        let stored = secrets.get_opt(SECRET_NAME).await.map_err(|error| api("read the webhook's Secret", error))?;
        let (bundle, written) = match stored {
            Some(secret) => {
                let bundle = from_secret(&secret)?;
                if bundle.is_good(&config.service, now) {
                    (bundle, Ok(()))
                } else {
                    info!("Rotating the webhook certificate");
                    let fresh = Bundle::generate(&config.service, now)?.trusting_also(&bundle.ca);
                    let mut secret = secret;
                    secret.data = Some(to_data(&fresh));
                    secret.metadata.managed_fields = None;
                    (fresh, secrets.replace(SECRET_NAME, &PostParams::default(), &secret).await.map(drop))
                }
            }
            None => {
                let fresh = Bundle::generate(&config.service, now)?;
                let secret = Secret {
                    metadata: ObjectMeta { name: Some(SECRET_NAME.to_owned()), ..ObjectMeta::default() },
                    type_: Some("Opaque".to_owned()),
                    data: Some(to_data(&fresh)),
                    ..Secret::default()
                };
                (fresh, secrets.create(&PostParams::default(), &secret).await.map(drop))
            }
        };
        match written {
            Ok(()) => {
                write_files(&config.directory, &bundle)?;
                return Ok(bundle);
            }
            Err(kube::Error::Api(status)) if status.code == 409 => debug!("Another replica wrote the webhook's Secret"),
            Err(error) => return Err(api("write the webhook's Secret", error)),
        }
    }
    Err(WebhookError::Contended { secret: SECRET_NAME, attempts: ATTEMPTS })
}

/// Writes the webhook's Service and CA bundle into the CRDs that use conversion by webhook.
pub(super) async fn publish(client: &Client, config: &WebhookConfig, bundle: &Bundle) -> Result<(), WebhookError> {
    let definition =
        ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    let crds: Api<DynamicObject> = Api::all_with(client.clone(), &definition);
    for name in CRDS {
        let Some(crd) = crds.get_opt(name).await.map_err(|error| api("read a CRD", error))? else { continue };
        let conversion = &crd.data["spec"]["conversion"];
        if conversion["strategy"] != "Webhook" {
            continue;
        }
        let wanted = json!({
            "service": { "name": config.service.name, "namespace": config.service.namespace, "path": "/convert" },
            "caBundle": base64::engine::general_purpose::STANDARD.encode(&bundle.ca),
        });
        let current = &conversion["webhook"]["clientConfig"];
        let same = current["caBundle"] == wanted["caBundle"]
            && ["name", "namespace", "path"].iter().all(|field| current["service"][field] == wanted["service"][field]);
        let versions_given =
            conversion["webhook"]["conversionReviewVersions"].as_array().is_some_and(|versions| !versions.is_empty());
        if same && versions_given {
            continue;
        }
        let mut webhook = json!({ "clientConfig": wanted });
        if !versions_given {
            webhook["conversionReviewVersions"] = json!(["v1", "v1beta1"]);
        }
        let patch = Patch::Merge(json!({ "spec": { "conversion": { "strategy": "Webhook", "webhook": webhook } } }));
        crds.patch(name, &PatchParams::default(), &patch).await.map_err(|error| api("patch a CRD", error))?;
    }
    Ok(())
}

fn api(doing: &'static str, source: kube::Error) -> WebhookError {
    WebhookError::Api { doing, source: Box::new(source) }
}

fn to_data(bundle: &Bundle) -> std::collections::BTreeMap<String, ByteString> {
    KEYS.into_iter()
        .zip([&bundle.ca, &bundle.certificate, &bundle.key])
        .map(|(key, value)| (key.to_owned(), ByteString(value.clone())))
        .collect()
}

fn from_secret(secret: &Secret) -> Result<Bundle, CertificateError> {
    let value = |key: &'static str| {
        secret
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .map(|value| value.0.clone())
            .filter(|value| is_pem(value))
            .ok_or(CertificateError::InvalidSecret { secret: SECRET_NAME.to_owned(), key })
    };
    Ok(Bundle { ca: value(KEYS[0])?, certificate: value(KEYS[1])?, key: value(KEYS[2])? })
}

fn write_files(directory: &Path, bundle: &Bundle) -> Result<(), CertificateError> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| CertificateError::File { doing, path, source }
    };
    fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed("create", directory))?;
    for (name, content) in [("tls.crt", &bundle.certificate), ("tls.key", &bundle.key)] {
        let path = directory.join(name);
        if fs::read(&path).is_ok_and(|current| current == *content) {
            continue;
        }
        let partial = directory.join(format!(".{name}.new"));
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)
            .map_err(failed("create", &partial))?;
        file.write_all(content).map_err(failed("write", &partial))?;
        fs::rename(&partial, &path).map_err(failed("replace", &path))?;
    }
    Ok(())
}
