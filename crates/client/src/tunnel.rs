//! A byte stream to a port inside a sandbox, through the API's port-forward.

use crate::ClientError;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use tokio::io::{AsyncRead, AsyncWrite};

/// Opens a connection to `port` of the Pod. Dropping the stream closes it.
pub async fn dial(
    client: &Client,
    pod: &Pod,
    port: u16,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>, ClientError> {
    let name = pod.name_any();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let failed = |message: String| ClientError::Dial { name: name.clone(), port, message };
    let mut forward = pods.portforward(&name, &[port]).await.map_err(|error| failed(error.to_string()))?;
    forward.take_stream(port).ok_or_else(|| failed("the API offered no stream".to_owned()))
}
