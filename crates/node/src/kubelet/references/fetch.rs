//! Reads what a Pod references from the API: ConfigMaps, Secrets, claims, service account tokens and registry
//! credentials.

use base64::Engine;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, PodSpec, Secret, ServiceAccount};
use kube::api::{Api, PostParams};
use serde::Deserialize;
use thiserror::Error;
use tracing::warn;

use crate::kubelet::references::{Sources, referenced_names};
use crate::runtime::RegistryCredentials;

/// A failed read; the caller retries.
#[derive(Debug, Error)]
#[error("cannot read {kind} {name:?}")]
pub struct FetchError {
    kind: &'static str,
    name: String,
    #[source]
    source: Box<kube::Error>,
}

fn failed(kind: &'static str, name: &str) -> impl FnOnce(kube::Error) -> FetchError {
    let name = name.to_owned();
    move |source| FetchError { kind, name, source: Box::new(source) }
}

/// Reads every object that the spec references; objects that do not exist are missing from the result.
pub async fn sources(client: &kube::Client, pod: &Pod, spec: &PodSpec) -> Result<Sources, FetchError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let names = referenced_names(spec);
    let mut out = Sources::default();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    for name in &names.config_maps {
        if let Some(found) = maps.get_opt(name).await.map_err(failed("configmap", name))? {
            out.config_maps.insert(name.clone(), found);
        }
    }
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    for name in &names.secrets {
        if let Some(found) = secrets.get_opt(name).await.map_err(failed("secret", name))? {
            out.secrets.insert(name.clone(), found);
        }
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    for name in &names.claims {
        if let Some(found) = claims.get_opt(name).await.map_err(failed("persistentvolumeclaim", name))? {
            out.claims.insert(name.clone(), found);
        }
    }
    tokens(client, pod, spec, &mut out).await?;
    Ok(out)
}

/// Requests the service account tokens of projected volumes, each bound to this Pod.
async fn tokens(client: &kube::Client, pod: &Pod, spec: &PodSpec, out: &mut Sources) -> Result<(), FetchError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let account = spec.service_account_name.as_deref().filter(|n| !n.is_empty()).unwrap_or("default");
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    for volume in spec.volumes.iter().flatten() {
        let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        for source in sources.filter_map(|s| s.service_account_token.as_ref()) {
            let request = TokenRequest {
                spec: Some(TokenRequestSpec {
                    audiences: source.audience.clone().map(|audience| vec![audience]),
                    expiration_seconds: source.expiration_seconds,
                    bound_object_ref: Some(BoundObjectReference {
                        api_version: Some("v1".to_owned()),
                        kind: Some("Pod".to_owned()),
                        name: pod.metadata.name.clone(),
                        uid: pod.metadata.uid.clone(),
                    }),
                }),
                ..TokenRequest::default()
            };
            let response = accounts.create_token_request(account, &PostParams::default(), &request).await;
            let response = response.map_err(failed("token of service account", account))?;
            let status = response.status.unwrap_or_default();
            if let Some(expires) = status.expiration_timestamp {
                let renew_at = renewal(Timestamp::now(), expires.0);
                out.renew_at = Some(out.renew_at.map_or(renew_at, |earliest| earliest.min(renew_at)));
            }
            let token = status.token.unwrap_or_default();
            out.tokens.insert((volume.name.clone(), source.path.clone()), token);
        }
    }
    Ok(())
}

/// When a token is renewed: after four fifths of its lifetime, as the upstream kubelet does.
fn renewal(now: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(now);
    now.saturating_add(life / 5 * 4).unwrap_or(expires)
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: std::collections::BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    username: Option<String>,
    password: Option<String>,
    auth: Option<String>,
}

/// Registry credentials of the Pod's `imagePullSecrets`. Missing and malformed Secrets are skipped, as in Kubernetes.
pub async fn credentials(client: &kube::Client, pod: &Pod) -> Vec<RegistryCredentials> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut out = Vec::new();
    for reference in pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten()) {
        match secrets.get_opt(&reference.name).await {
            Ok(Some(secret)) => out.extend(parse_credentials(&secret)),
            Ok(None) => warn!(secret = reference.name, "A pull secret does not exist"),
            Err(error) => warn!(%error, secret = reference.name, "A pull secret could not be read"),
        }
    }
    out
}

fn parse_credentials(secret: &Secret) -> Vec<RegistryCredentials> {
    let data = secret.data.as_ref();
    let auths = if let Some(config) = data.and_then(|d| d.get(".dockerconfigjson")) {
        serde_json::from_slice::<DockerConfig>(&config.0).map(|c| c.auths)
    } else if let Some(config) = data.and_then(|d| d.get(".dockercfg")) {
        serde_json::from_slice(&config.0)
    } else {
        return Vec::new();
    };
    auths
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(registry, auth)| {
            let (username, password) = match (auth.username, auth.password) {
                (Some(username), Some(password)) => (username, password),
                _ => {
                    let raw = base64::engine::general_purpose::STANDARD.decode(auth.auth?).ok()?;
                    let text = String::from_utf8(raw).ok()?;
                    let (username, password) = text.split_once(':')?;
                    (username.to_owned(), password.to_owned())
                }
            };
            let registry = registry.trim_start_matches("https://").trim_start_matches("http://");
            let registry = registry.split('/').next().unwrap_or(registry).to_owned();
            Some(RegistryCredentials { registry, username, password })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    #[test]
    fn both_forms_of_pull_secrets_are_read() {
        let config = r#"{"auths": {"https://reg.test/v1/": {"auth": "dTpw"}, "other.test": {"username": "a", "password": "b"}, "bad": {}}}"#;
        let data = [(".dockerconfigjson".to_owned(), ByteString(config.as_bytes().to_vec()))].into();
        let found = parse_credentials(&Secret { data: Some(data), ..Secret::default() });
        let list: Vec<_> =
            found.iter().map(|c| (c.registry.as_str(), c.username.as_str(), c.password.as_str())).collect();
        assert_eq!(list, [("reg.test", "u", "p"), ("other.test", "a", "b")]);
        assert_eq!(parse_credentials(&Secret::default()), []);
    }
}
