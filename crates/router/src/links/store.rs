//! Reads and writes the records of links, in an annotation of the Sandbox.

use std::time::Duration;

use agent_sandbox_api::keys::annotations;
use agent_sandbox_api::links::{self, LinkRecord};
use agent_sandbox_api::v1beta1::Sandbox;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::LinkError;
use crate::auth::unix_seconds;

/// Timeout for one request to the API: a request of a client waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts to write when others change the Sandbox at the same time.
const ATTEMPTS: usize = 5;

/// Why records could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("the API did not respond within {TIMEOUT:?}")]
    Timeout,
    #[error(transparent)]
    Api(Box<kube::Error>),
}

pub(super) struct Store {
    client: Client,
}

impl Store {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// The valid records; none for a Sandbox that does not exist.
    pub(super) async fn records(&self, namespace: &str, name: &str) -> Result<Vec<LinkRecord>, StoreError> {
        let sandbox = self.get(namespace, name).await?;
        let annotation = sandbox.as_ref().and_then(|sandbox| sandbox.annotation(annotations::LINKS));
        Ok(links::read(annotation, unix_seconds()))
    }

    /// Replaces the annotation of exactly the version of the Sandbox that `change` saw. `change` returns the new text,
    /// or `None` to remove the annotation.
    pub(super) async fn change(
        &self,
        namespace: &str,
        name: &str,
        change: impl Fn(&Sandbox) -> Result<Option<String>, LinkError>,
    ) -> Result<(), LinkError> {
        let failed = |error: StoreError| {
            tracing::warn!(%error, namespace, sandbox = name, "Links of a sandbox could not be changed");
            LinkError::Api
        };
        for _ in 0..ATTEMPTS {
            let Some(sandbox) = self.get(namespace, name).await.map_err(failed)? else {
                return Err(LinkError::NoSandbox { namespace: namespace.to_owned(), name: name.to_owned() });
            };
            let text = change(&sandbox)?.map_or(Value::Null, Value::String);
            let patch = json!({ "metadata": {
                "uid": sandbox.uid(),
                "resourceVersion": sandbox.resource_version(),
                "annotations": { annotations::LINKS: text },
            }});
            match self.patch(namespace, name, &patch).await {
                Ok(()) => return Ok(()),
                Err(StoreError::Api(error)) if is_status(&error, 409) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(LinkError::Conflict)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Sandbox>, StoreError> {
        let found = tokio::time::timeout(TIMEOUT, self.api(namespace).get_opt(name)).await;
        found.map_err(|_| StoreError::Timeout)?.map_err(|error| StoreError::Api(Box::new(error)))
    }

    async fn patch(&self, namespace: &str, name: &str, patch: &Value) -> Result<(), StoreError> {
        let (api, params, patch) = (self.api(namespace), PatchParams::default(), Patch::Merge(patch));
        let written = tokio::time::timeout(TIMEOUT, api.patch(name, &params, &patch)).await;
        written.map_err(|_| StoreError::Timeout)?.map(drop).map_err(|error| StoreError::Api(Box::new(error)))
    }

    fn api(&self, namespace: &str) -> Api<Sandbox> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
