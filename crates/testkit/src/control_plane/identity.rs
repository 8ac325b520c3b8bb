//! Users of the control plane's API, and kubeconfigs for them.

use std::path::PathBuf;

use anyhow::Context;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use super::{ControlPlane, credentials::Signed, credentials::write};

/// A user of the API.
#[derive(Clone)]
pub(super) struct Identity {
    user: String,
    group: String,
    credential: Value,
}

impl Identity {
    /// A user with a token in the API server's token file.
    pub(super) fn token(user: &str, group: &str) -> Self {
        let token = uuid::Uuid::new_v4().simple().to_string();
        Self { user: user.to_owned(), group: group.to_owned(), credential: json!({ "token": token }) }
    }

    /// The user's line in the token file.
    pub(super) fn token_line(&self) -> String {
        let token = self.credential["token"].as_str().unwrap_or_default();
        format!("{token},{user},{user},\"{group}\"\n", user = self.user, group = self.group)
    }

    /// The user that the certificate names.
    pub(super) fn certificate(signed: &Signed) -> Self {
        let credential = json!({
            "client-certificate-data": STANDARD.encode(&signed.certificate),
            "client-key-data": STANDARD.encode(&signed.key),
        });
        Self { user: String::new(), group: String::new(), credential }
    }
}

impl ControlPlane {
    /// A kubeconfig for the identity, as JSON, which is valid YAML.
    pub(super) fn kubeconfig_of(&self, identity: &Identity) -> String {
        let cluster = json!({
            "server": format!("https://{}", self.address),
            "certificate-authority-data": STANDARD.encode(self.authority.certificate()),
        });
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "control-plane", "cluster": cluster }],
            "users": [{ "name": "user", "user": identity.credential }],
            "contexts": [{ "name": "control-plane", "context": { "cluster": "control-plane", "user": "user" } }],
            "current-context": "control-plane",
        })
        .to_string()
    }

    /// A kubeconfig with exactly the permissions of an existing ServiceAccount.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> anyhow::Result<PathBuf> {
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.client().await?, namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec { expiration_seconds: Some(7200), ..TokenRequestSpec::default() }),
            ..TokenRequest::default()
        };
        let response = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("no token for ServiceAccount {namespace}/{name}"))?;
        let token = response.status.context("a TokenRequest without a token")?.token;
        let identity = Identity { user: String::new(), group: String::new(), credential: json!({ "token": token }) };
        let path = self.path(&format!("{namespace}-{name}.kubeconfig"));
        write(&path, &self.kubeconfig_of(&identity))?;
        Ok(path)
    }
}
