//! What the tools do: claims of one session, and commands and files in their sandboxes.

use crate::{
    arguments::{Create, Download, Execute, Exists, List, Named, Upload},
    runtime,
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

/// Sandboxes whose connections are kept; more, and all are opened anew.
const KEPT: usize = 1024;

/// Why a tool did not do what it was asked to. The words go to the model.
#[derive(Debug, Error)]
pub(crate) enum ToolError {
    #[error("sandbox claim {name:?} not found in namespace {namespace:?}")]
    NotFound { namespace: String, name: String },
    #[error("the label {0:?} says whose sandbox it is and cannot be set")]
    ReservedLabel(String),
    #[error("content is not base64: {0}")]
    Base64(base64::DecodeError),
    #[error("{0:?} is not UTF-8 text; read it with binary set to true")]
    NotText(String),
    #[error("{}", .0.full())]
    Sandbox(#[from] ClientError),
}

/// Handles with their connections, by session, namespace and claim.
type Open = HashMap<(String, String, String), SandboxHandle>;

/// Sandboxes of a cluster, divided by session.
#[derive(Clone)]
pub struct Sandboxes {
    client: SandboxClient,
    session_key: String,
    open: Arc<Mutex<Open>>,
}

impl Sandboxes {
    pub fn new(client: SandboxClient, session_key: String) -> Self {
        Self { client, session_key, open: Arc::default() }
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
        self.keep(session, sandbox.namespace().to_owned(), name.clone(), sandbox);
        Ok(json!({"sandbox_claim_name": name}))
    }

    pub(crate) async fn delete(&self, session: &str, of: Named) -> Result<(), ToolError> {
        self.owned(session, &of).await?;
        self.client.delete_claim(&of.namespace, &of.sandbox_claim_name, None).await?;
        self.opened().remove(&key(session, &of));
        Ok(())
    }

    pub(crate) async fn execute(&self, session: &str, wanted: Execute) -> Result<Value, ToolError> {
        let sandbox = self.sandbox(session, &wanted.of).await?;
        let done = runtime::execute(&sandbox, wanted.command, wanted.timeout.0).await?;
        Ok(json!({"exit_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}))
    }

    pub(crate) async fn upload(&self, session: &str, wanted: Upload) -> Result<Value, ToolError> {
        let content = match wanted.binary {
            true => STANDARD.decode(wanted.content.as_bytes()).map_err(ToolError::Base64)?,
            false => wanted.content.into_bytes(),
        };
        let sandbox = self.sandbox(session, &wanted.of).await?;
        runtime::upload(&sandbox, &wanted.path, &content, wanted.timeout.0).await?;
        Ok(json!({"bytes_written": content.len()}))
    }

    pub(crate) async fn download(&self, session: &str, wanted: Download) -> Result<Value, ToolError> {
        let sandbox = self.sandbox(session, &wanted.of).await?;
        let bytes = runtime::download(&sandbox, &wanted.path, wanted.timeout.0).await?;
        let content = match wanted.binary {
            true => STANDARD.encode(&bytes),
            false => String::from_utf8(bytes.to_vec()).map_err(|_| ToolError::NotText(wanted.path))?,
        };
        Ok(json!({"content": content, "bytes_read": bytes.len()}))
    }

    pub(crate) async fn list(&self, session: &str, wanted: List) -> Result<Value, ToolError> {
        let sandbox = self.sandbox(session, &wanted.of).await?;
        let mut entries = runtime::list(&sandbox, &wanted.path, wanted.timeout.0).await?;
        let total = entries.len();
        entries.truncate(wanted.max_entries.0);
        let truncated = entries.len() < total;
        Ok(json!({"entries": entries, "total_entries": total, "truncated": truncated}))
    }

    pub(crate) async fn exists(&self, session: &str, wanted: Exists) -> Result<Value, ToolError> {
        let sandbox = self.sandbox(session, &wanted.of).await?;
        Ok(json!({"exists": runtime::exists(&sandbox, &wanted.path, wanted.timeout.0).await?}))
    }

    /// Names of the session's claims in a namespace.
    pub(crate) async fn claims(&self, session: &str, namespace: &str) -> Result<Vec<String>, ToolError> {
        let selector = format!("{}={session}", self.session_key);
        Ok(self.client.claims(namespace, Some(&selector)).await?)
    }

    /// A claim of another session is no more there than one that does not exist.
    async fn owned(&self, session: &str, of: &Named) -> Result<(), ToolError> {
        if self.claims(session, &of.namespace).await?.contains(&of.sandbox_claim_name) {
            return Ok(());
        }
        self.opened().remove(&key(session, of));
        Err(ToolError::NotFound { namespace: of.namespace.clone(), name: of.sandbox_claim_name.clone() })
    }

    async fn sandbox(&self, session: &str, of: &Named) -> Result<SandboxHandle, ToolError> {
        self.owned(session, of).await?;
        if let Some(open) = self.opened().get(&key(session, of)) {
            return Ok(open.clone());
        }
        let found = self.client.find(&of.namespace, &of.sandbox_claim_name).await?;
        self.keep(session, of.namespace.clone(), of.sandbox_claim_name.clone(), found.clone());
        Ok(found)
    }

    fn keep(&self, session: &str, namespace: String, claim: String, sandbox: SandboxHandle) {
        let mut open = self.opened();
        if open.len() >= KEPT {
            open.clear();
        }
        open.insert((session.to_owned(), namespace, claim), sandbox);
    }

    fn opened(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(session: &str, of: &Named) -> (String, String, String) {
    (session.to_owned(), of.namespace.clone(), of.sandbox_claim_name.clone())
}
