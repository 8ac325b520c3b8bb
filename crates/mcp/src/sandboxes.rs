//! Implementation of the tools: claims of a session, and commands and files in their sandboxes.

use crate::{
    arguments::{Create, Download, Execute, Exists, List, SandboxRef, Upload},
    runtime_api,
};
use agent_sandbox_client::{ClaimRequest, ClientError, SandboxClient, SandboxHandle, Source};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use thiserror::Error;

/// Maximum number of cached handles. When it is reached, the whole cache is cleared.
const MAX_CACHED_HANDLES: usize = 1024;

/// Why a tool call failed. The message is returned to the model.
#[derive(Debug, Error)]
pub(crate) enum ToolError {
    #[error("sandbox claim {name:?} not found in namespace {namespace:?}")]
    NotFound { namespace: String, name: String },
    #[error("the label {0:?} identifies the session and cannot be set")]
    ReservedLabel(String),
    #[error("content is not base64: {0}")]
    Base64(base64::DecodeError),
    #[error("{0:?} is not UTF-8 text; read it with binary set to true")]
    NotText(String),
    #[error("{}", .0.full())]
    Sandbox(#[from] ClientError),
}

/// Handles with open connections, by session, namespace and claim.
type HandleCache = HashMap<(String, String, String), SandboxHandle>;

/// The sandboxes of a cluster, separated by session.
#[derive(Clone)]
pub struct Sandboxes {
    client: SandboxClient,
    session_key: String,
    handles: Arc<Mutex<HandleCache>>,
}

impl Sandboxes {
    pub fn new(client: SandboxClient, session_key: String) -> Self {
        Self { client, session_key, handles: Arc::default() }
    }

    pub(crate) async fn create(&self, session: &str, wanted: Create) -> Result<Value, ToolError> {
        let mut request = ClaimRequest::new(Source::Named(wanted.warmpool), wanted.namespace);
        request.labels = wanted.labels.unwrap_or_default();
        if request.labels.insert(self.session_key.clone(), session.to_owned()).is_some() {
            return Err(ToolError::ReservedLabel(self.session_key.clone()));
        }
        request.pod_labels = wanted.pod_labels.unwrap_or_default();
        request.pod_annotations = wanted.pod_annotations.unwrap_or_default();
        request.expires_after = wanted.shutdown_after_seconds.map(Duration::from_secs);
        request.ready_timeout = Duration::from_secs(wanted.sandbox_ready_timeout);
        request.created_by = "mcp-server";
        let sandbox = self.client.claim(&request).await?;
        let name = sandbox.claim().unwrap_or_default().to_owned();
        self.cache_handle(session, sandbox.namespace().to_owned(), name.clone(), sandbox);
        Ok(json!({"sandbox_claim_name": name}))
    }

    pub(crate) async fn delete(&self, session: &str, target: SandboxRef) -> Result<(), ToolError> {
        self.check_ownership(session, &target).await?;
        self.client.delete_claim(&target.namespace, &target.sandbox_claim_name, None).await?;
        self.handles().remove(&key(session, &target));
        Ok(())
    }

    pub(crate) async fn execute(&self, session: &str, wanted: Execute) -> Result<Value, ToolError> {
        let sandbox = self.sandbox(session, &wanted.sandbox).await?;
        let done = runtime_api::execute(&sandbox, wanted.command, wanted.timeout.0).await?;
        Ok(json!({"exit_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}))
    }

    pub(crate) async fn upload(&self, session: &str, wanted: Upload) -> Result<Value, ToolError> {
        let content = match wanted.binary {
            true => STANDARD.decode(wanted.content.as_bytes()).map_err(ToolError::Base64)?,
            false => wanted.content.into_bytes(),
        };
        let sandbox = self.sandbox(session, &wanted.sandbox).await?;
        runtime_api::upload(&sandbox, &wanted.path, &content, wanted.timeout.0).await?;
        Ok(json!({"bytes_written": content.len()}))
    }

    pub(crate) async fn download(&self, session: &str, wanted: Download) -> Result<Value, ToolError> {
        let sandbox = self.sandbox(session, &wanted.sandbox).await?;
        let bytes = runtime_api::download(&sandbox, &wanted.path, wanted.timeout.0).await?;
        let content = match wanted.binary {
            true => STANDARD.encode(&bytes),
            false => String::from_utf8(bytes.to_vec()).map_err(|_| ToolError::NotText(wanted.path))?,
        };
        Ok(json!({"content": content, "bytes_read": bytes.len()}))
    }

    pub(crate) async fn list(&self, session: &str, wanted: List) -> Result<Value, ToolError> {
        let sandbox = self.sandbox(session, &wanted.sandbox).await?;
        let mut entries = runtime_api::list(&sandbox, &wanted.path, wanted.timeout.0).await?;
        let total = entries.len();
        entries.truncate(wanted.max_entries.0);
        let truncated = entries.len() < total;
        Ok(json!({"entries": entries, "total_entries": total, "truncated": truncated}))
    }

    pub(crate) async fn exists(&self, session: &str, wanted: Exists) -> Result<Value, ToolError> {
        let sandbox = self.sandbox(session, &wanted.sandbox).await?;
        Ok(json!({"exists": runtime_api::exists(&sandbox, &wanted.path, wanted.timeout.0).await?}))
    }

    /// Names of the session's claims in a namespace.
    pub(crate) async fn claims(&self, session: &str, namespace: &str) -> Result<Vec<String>, ToolError> {
        let selector = format!("{}={session}", self.session_key);
        Ok(self.client.claims(namespace, Some(&selector)).await?)
    }

    /// Checks that the claim belongs to the session. A claim of another session is reported as not found.
    async fn check_ownership(&self, session: &str, target: &SandboxRef) -> Result<(), ToolError> {
        if self.claims(session, &target.namespace).await?.contains(&target.sandbox_claim_name) {
            return Ok(());
        }
        self.handles().remove(&key(session, target));
        Err(ToolError::NotFound { namespace: target.namespace.clone(), name: target.sandbox_claim_name.clone() })
    }

    async fn sandbox(&self, session: &str, target: &SandboxRef) -> Result<SandboxHandle, ToolError> {
        self.check_ownership(session, target).await?;
        if let Some(open) = self.handles().get(&key(session, target)) {
            return Ok(open.clone());
        }
        let found = self.client.find(&target.namespace, &target.sandbox_claim_name).await?;
        self.cache_handle(session, target.namespace.clone(), target.sandbox_claim_name.clone(), found.clone());
        Ok(found)
    }

    fn cache_handle(&self, session: &str, namespace: String, claim: String, sandbox: SandboxHandle) {
        let mut handles = self.handles();
        if handles.len() >= MAX_CACHED_HANDLES {
            handles.clear();
        }
        handles.insert((session.to_owned(), namespace, claim), sandbox);
    }

    fn handles(&self) -> MutexGuard<'_, HandleCache> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(session: &str, target: &SandboxRef) -> (String, String, String) {
    (session.to_owned(), target.namespace.clone(), target.sandbox_claim_name.clone())
}
