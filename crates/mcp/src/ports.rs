//! `open_port`: connections to a port of this machine's loopback address reach a port of a sandbox. Only for a server on
//! standard input and output, whose user is on this machine.

use crate::{Sandboxes, arguments::OpenPort, sandboxes::ToolError};
use agent_sandbox_client::{self as sdk, ClientError, SandboxHandle};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// Maximum number of open ports.
const MAX_PORTS: usize = 16;

/// Timeout for the requests that find the sandbox.
const LIMIT: Duration = Duration::from_secs(60);

/// The open ports, which end with the server.
#[derive(Clone, Default)]
pub(crate) struct OpenPorts(Arc<Mutex<HashMap<Target, Forward>>>);

/// Namespace, sandbox and port.
type Target = (String, String, u16);

struct Forward {
    url: String,
    _task: AbortOnDropHandle<()>,
}

impl OpenPorts {
    pub(crate) async fn open(
        &self,
        sandboxes: &Sandboxes,
        session: &str,
        wanted: OpenPort,
    ) -> Result<Value, ToolError> {
        let opened = sandboxes.open(session, &wanted.sandbox, LIMIT).await?;
        let target = (opened.handle.namespace().to_owned(), opened.handle.name().to_owned(), wanted.port);
        let known = self.lock().get(&target).map(|forward| forward.url.clone());
        let url = match known {
            Some(url) => url,
            None => self.listen(sandboxes, opened.handle.clone(), target).await?,
        };
        Ok(opened.result(json!({"url": url})))
    }

    async fn listen(&self, sandboxes: &Sandboxes, sandbox: SandboxHandle, target: Target) -> Result<String, ToolError> {
        if self.lock().len() >= MAX_PORTS {
            return Err(ToolError::TooManyPorts(MAX_PORTS));
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(ToolError::Listen)?;
        let url = format!("http://{}", listener.local_addr().map_err(ToolError::Listen)?);
        let (client, port) = (sandboxes.client.cluster().client.clone(), target.2);
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (client, sandbox) = (client.clone(), sandbox.clone());
                tokio::spawn(async move {
                    if let Err(error) = connect(near, &client, &sandbox, port).await {
                        tracing::warn!(port, error = error.full(), "Cannot connect to the sandbox");
                    }
                });
            }
        });
        let forward = Forward { url: url.clone(), _task: AbortOnDropHandle::new(task) };
        self.lock().insert(target, forward);
        Ok(url)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Target, Forward>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries one connection. The Pod is looked up each time: a resumed sandbox has another one, and one that sleeps is woken.
async fn connect(
    mut near: TcpStream,
    client: &kube::Client,
    sandbox: &SandboxHandle,
    port: u16,
) -> Result<(), ClientError> {
    let pod = sdk::awake_pod(client, &sandbox.object().await?).await?;
    let mut far = sdk::dial(client, &pod, port).await?;
    // Either end may close without a farewell.
    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    Ok(())
}
