//! A byte stream to a port inside a sandbox, through the API's port-forward over a WebSocket.

use crate::ClientError;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio_tungstenite::tungstenite::Message;

/// Bytes on their way in each direction.
const BUFFER: usize = 256 * 1024;
/// The largest message sent: large enough that framing costs nothing, small enough that both directions take turns.
const CHUNK: usize = 64 * 1024;
/// How long the answer to a finished input may take to end.
const LINGER: Duration = Duration::from_secs(10);
/// Channels of the one forwarded port.
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// Opens a connection to `port` of the Pod. Dropping the stream closes it.
pub async fn dial(
    client: &Client,
    pod: &Pod,
    port: u16,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>, ClientError> {
    forward(client, &pod.namespace().unwrap_or_default(), &pod.name_any(), port).await
}

/// The same by name.
pub(crate) async fn forward(
    client: &Client,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<DuplexStream, ClientError> {
    let failed = |message: String| ClientError::Dial { name: name.to_owned(), port, message };
    let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}/portforward?ports={port}");
    let request = Request::get(uri).body(Vec::new()).map_err(|error| failed(error.to_string()))?;
    let connection = client.connect(request).await.map_err(|error| failed(error.to_string()))?;
    let (near, far) = tokio::io::duplex(BUFFER);
    let (mut sink, mut messages) = connection.into_stream().split();
    let (mut from_near, mut to_near) = tokio::io::split(far);
    // Both directions live in one task: it ends with the WebSocket, or when the near end is dropped.
    tokio::spawn(async move {
        let outgoing = async {
            let mut chunk = vec![0; CHUNK + 1];
            chunk[0] = DATA;
            while let Ok(count @ 1..) = from_near.read(&mut chunk[1..]).await {
                if sink.send(Message::Binary(Bytes::copy_from_slice(&chunk[..=count]))).await.is_err() {
                    return;
                }
            }
            let _ = sink.close().await;
        };
        let incoming = async {
            // The first message of each channel repeats the port's number.
            let mut opened = [false; 2];
            while let Some(Ok(message)) = messages.next().await {
                let Message::Binary(bytes) = message else { continue };
                let Some((&channel @ (DATA | ERROR), data)) = bytes.split_first() else { continue };
                if !std::mem::replace(&mut opened[usize::from(channel)], true) {
                    continue;
                }
                if channel == ERROR || to_near.write_all(data).await.is_err() {
                    break;
                }
            }
            let _ = to_near.shutdown().await;
        };
        tokio::pin!(incoming);
        tokio::select! {
            // What the other side still has to say is delivered; the protocol cannot close one direction alone.
            () = outgoing => drop(tokio::time::timeout(LINGER, incoming).await),
            () = &mut incoming => {}
        }
    });
    Ok(near)
}
