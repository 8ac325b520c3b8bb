//! Opens a byte stream to a port of a Pod through the API's port-forward over a WebSocket.

use crate::{ClientError, upgraded};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use tokio::io::{AsyncRead, AsyncWrite};

/// Opens a connection to `port` of the Pod. Dropping the stream closes it.
pub async fn dial(
    client: &Client,
    pod: &Pod,
    port: u16,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>, ClientError> {
    forward(client, &pod.namespace().unwrap_or_default(), &pod.name_any(), port).await
}

/// Like [`dial`], by Pod name.
pub(crate) async fn forward(
    client: &Client,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>, ClientError> {
    let failed = |message: String| ClientError::Dial { name: name.to_owned(), port, message };
    let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}/portforward?ports={port}");
    let request = Request::get(uri).body(Vec::new()).map_err(|error| failed(error.to_string()))?;
    let connection = client.connect(request).await.map_err(|error| failed(error.to_string()))?;
    // Nothing has been read from the WebSocket yet, so no frame is lost by taking its connection.
    Ok(upgraded::channel(connection.into_stream().into_inner().into_inner()))
}
