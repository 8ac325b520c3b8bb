//! A handle for one sandbox: commands, files, and lifecycle.

use crate::{
    Call, ClientError, Files, Transport,
    lifecycle::{self},
    wait,
};
use agent_sandbox_api::v1beta1::Sandbox;
use bytes::Bytes;
use http::Response;
use hyper::body::Incoming;
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// A handle for a sandbox. Clones share connections; dropping a handle does not delete the sandbox.
#[derive(Clone)]
pub struct SandboxHandle {
    client: Option<Client>,
    namespace: String,
    name: String,
    claim: Option<String>,
    transport: Transport,
    boot: Arc<Mutex<Option<String>>>,
}

impl SandboxHandle {
    pub(crate) fn new(
        client: Option<Client>,
        namespace: String,
        name: String,
        claim: Option<String>,
        transport: Transport,
    ) -> Self {
        Self { client, namespace, name, claim, transport, boot: Arc::default() }
    }

    /// The Sandbox's own name, which differs from that of its claim if it came from a pool.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The claim that the sandbox is bound to, if any.
    pub fn claim(&self) -> Option<&str> {
        self.claim.as_deref()
    }

    pub fn files(&self) -> Files<'_> {
        Files::over(&self.transport)
    }

    /// The transport, for requests that the SDK has no method for.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// The current Sandbox object.
    pub async fn object(&self) -> Result<Sandbox, ClientError> {
        let api: Api<Sandbox> = Api::namespaced(self.client()?.clone(), &self.namespace);
        let found = api.get_opt(&self.name).await;
        found.map_err(ClientError::api(format!("look up `{}`", self.name)))?.ok_or_else(|| ClientError::NotFound {
            kind: "sandbox",
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        })
    }

    /// Suspends the sandbox and waits until it has stopped. Its files and its name are kept.
    pub async fn suspend(&self, limit: Duration) -> Result<(), ClientError> {
        lifecycle::suspend(self.client()?, &self.namespace, &self.name).await?;
        wait::sandbox_suspended(self.client()?, &self.namespace, &self.name, limit).await.map(drop)
    }

    /// Resumes the sandbox and waits until it is ready.
    pub async fn resume(&self, limit: Duration) -> Result<(), ClientError> {
        lifecycle::resume(self.client()?, &self.namespace, &self.name).await?;
        wait::sandbox_ready(self.client()?, &self.namespace, &self.name, limit).await.map(drop)
    }

    /// Deletes the claim if there is one, otherwise the Sandbox. A missing object is not an error.
    pub async fn delete(&self) -> Result<(), ClientError> {
        let name = self.claim.as_deref().unwrap_or(&self.name);
        match lifecycle::delete(self.client()?, &self.namespace, name).await {
            Ok(_) | Err(ClientError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sets the time after which the sandbox is deleted.
    pub async fn expire_after(&self, time: Duration) -> Result<(), ClientError> {
        lifecycle::expire_after(self.client()?, &self.namespace, &self.name, self.claim.as_deref(), time).await
    }

    fn client(&self) -> Result<&Client, ClientError> {
        let message = "this handle has no access to the Kubernetes API; only commands and files work";
        self.client.as_ref().ok_or_else(|| ClientError::Invalid(message.to_owned()))
    }

    pub(crate) async fn send(&self, call: Call) -> Result<Response<Incoming>, ClientError> {
        self.transport.send(call).await.map_err(unsupported)
    }

    pub(crate) async fn fetch(&self, call: Call) -> Result<Bytes, ClientError> {
        self.transport.fetch(call).await.map_err(unsupported)
    }

    pub(crate) async fn fetch_json<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        self.transport.fetch_json(call).await.map_err(unsupported)
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, bytes: Bytes, operation: &str) -> Result<T, ClientError> {
        self.transport.decode(bytes, operation)
    }

    /// The daemon's boot id, cached.
    pub(crate) async fn boot_id(&self) -> Result<String, ClientError> {
        let known = || self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(boot) = known().clone() {
            return Ok(boot);
        }
        let boot = self.info().await?.boot_id;
        *known() = Some(boot.clone());
        Ok(boot)
    }

    pub(crate) fn forget_boot(&self) {
        *self.boot.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A 404 or 405 with a `detail` member comes from a runtime other than sandboxd, which lacks the native API.
fn unsupported(error: ClientError) -> ClientError {
    match error {
        ClientError::Refused { status: 404 | 405, code: None, operation, body, .. }
            if serde_json::from_slice::<serde_json::Value>(&body).is_ok_and(|body| body.get("detail").is_some()) =>
        {
            ClientError::Unsupported { operation }
        }
        other => other,
    }
}

/// Name of the Pod of a Sandbox: that of the annotation, otherwise that of the Sandbox.
pub fn pod_name(sandbox: &Sandbox) -> String {
    let annotated = sandbox.annotation(agent_sandbox_api::keys::annotations::POD_NAME).filter(|pod| !pod.is_empty());
    annotated.map_or_else(|| sandbox.name_any(), str::to_owned)
}
