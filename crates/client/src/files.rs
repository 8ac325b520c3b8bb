//! Files of a sandbox, through its daemon's native API over the tunnel.

use crate::{ClientError, tunnel};
use agent_sandbox_protocol::native::{ErrorBody, PREFIX};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, BodyStream, Empty, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::io;

/// Where the daemon listens.
const PORT: u16 = 8888;
/// Words of an error that a daemon may send; more is cut.
const MAX_ERROR: usize = 64 * 1024;

/// What a path in a sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteKind {
    Missing,
    File,
    Directory,
}

/// A running sandbox's files.
pub struct Files<'a> {
    client: &'a Client,
    pod: &'a Pod,
}

type Body = BoxBody<Bytes, io::Error>;

impl<'a> Files<'a> {
    pub fn new(client: &'a Client, pod: &'a Pod) -> Self {
        Self { client, pod }
    }

    /// What a path is; a path below a file is missing.
    pub async fn kind(&self, path: &str) -> Result<RemoteKind, ClientError> {
        let answer = self.send(Method::GET, "files/stat", path, empty()).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(RemoteKind::Missing);
        }
        let answer = self.expect_success(answer, path).await?;
        let body = answer.into_body().collect().await.map_err(|error| self.broken("stat", error))?.to_bytes();
        let entry: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        Ok(if entry["type"] == "directory" { RemoteKind::Directory } else { RemoteKind::File })
    }

    /// The content of a file, as it arrives.
    pub async fn read(&self, path: &str) -> Result<impl Stream<Item = io::Result<Bytes>> + use<>, ClientError> {
        let answer = self.send(Method::GET, "files", path, empty()).await?;
        Ok(bytes_of(self.expect_success(answer, path).await?))
    }

    /// A directory as a tar stream.
    pub async fn read_tar(&self, path: &str) -> Result<impl Stream<Item = io::Result<Bytes>> + use<>, ClientError> {
        let answer = self.send(Method::GET, "files/tar", path, empty()).await?;
        Ok(bytes_of(self.expect_success(answer, path).await?))
    }

    /// Writes a file, whole or not at all.
    pub async fn write(
        &self,
        path: &str,
        content: impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static,
    ) -> Result<(), ClientError> {
        let answer = self.send(Method::PUT, "files", path, streamed(content)).await?;
        self.expect_success(answer, path).await.map(drop)
    }

    /// Unpacks a tar stream into a directory, which is made when it is missing.
    pub async fn write_tar(
        &self,
        path: &str,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static,
    ) -> Result<(), ClientError> {
        let answer = self.send(Method::PUT, "files/tar", path, streamed(archive)).await?;
        self.expect_success(answer, path).await.map(drop)
    }

    async fn send(
        &self,
        method: Method,
        endpoint: &str,
        path: &str,
        body: Body,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = tunnel::dial(self.client, self.pod, PORT).await?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.broken(endpoint, error))?;
        tokio::spawn(connection);
        let query = utf8_percent_encode(path, NON_ALPHANUMERIC);
        let request = Request::builder()
            .method(method)
            .uri(format!("{PREFIX}/{endpoint}?path={query}"))
            .header(http::header::HOST, "sandbox")
            .body(body)
            .map_err(|error| self.broken(endpoint, error))?;
        sender.send_request(request).await.map_err(|error| self.broken(endpoint, error))
    }

    async fn expect_success(&self, answer: Response<Incoming>, path: &str) -> Result<Response<Incoming>, ClientError> {
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let body = http_body_util::Limited::new(answer.into_body(), MAX_ERROR).collect().await;
        let said = body.ok().and_then(|body| serde_json::from_slice::<ErrorBody>(&body.to_bytes()).ok());
        let message = said.map_or_else(|| status.to_string(), |error| error.message);
        Err(ClientError::File { name: self.pod.name_any(), path: path.to_owned(), message })
    }

    fn broken(&self, what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Stream {
            operation: format!("transfer files of `{}` ({what})", self.pod.name_any()),
            source: io::Error::other(error),
        }
    }
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

fn streamed(content: impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static) -> Body {
    BodyExt::boxed(StreamBody::new(content.map_ok(Frame::data)))
}

fn bytes_of(answer: Response<Incoming>) -> impl Stream<Item = io::Result<Bytes>> {
    TryStreamExt::map_err(BodyStream::new(answer.into_body()), io::Error::other)
        .try_filter_map(|frame| std::future::ready(Ok(frame.into_data().ok())))
}
