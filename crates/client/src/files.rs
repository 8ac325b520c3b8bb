//! File operations in a sandbox through the daemon's native API.

use crate::{
    ByteStream, Call, ClientError, Payload, Retry, Transport, download::Download, events::JsonLines,
    responses::MAX_RESPONSE_BYTES,
};
use agent_sandbox_protocol::native::{
    Change, ErrorCode, FileInfo, FileList, FileOperation, FileType, Match, PREFIX, SearchResult, Unpacked,
};
use bytes::Bytes;
use futures::Stream;
use http::{HeaderValue, Method, header};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::{borrow::Cow, io, time::Duration};

/// Type of a path in a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteKind {
    Missing,
    File,
    Directory,
}

/// Files of a running sandbox. A path without a leading slash is relative to the sandbox's base directory.
pub struct Files<'a> {
    transport: Cow<'a, Transport>,
}

impl<'a> Files<'a> {
    /// Files of a Pod, through the API's port-forward.
    pub fn new(client: &'a Client, pod: &'a Pod) -> Self {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        Self { transport: Cow::Owned(Transport::to_pod(client.clone(), namespace, name)) }
    }

    pub(crate) fn over(transport: &'a Transport) -> Self {
        Self { transport: Cow::Borrowed(transport) }
    }

    /// Type of a path. A path below a regular file counts as missing.
    pub async fn kind(&self, path: &str) -> Result<RemoteKind, ClientError> {
        match self.stat(path, false).await {
            Ok(info) if info.kind == FileType::Directory => Ok(RemoteKind::Directory),
            Ok(_) => Ok(RemoteKind::File),
            Err(ClientError::Refused { code: Some(ErrorCode::NotFound), .. }) => Ok(RemoteKind::Missing),
            Err(error) => Err(error),
        }
    }

    pub async fn exists(&self, path: &str) -> Result<bool, ClientError> {
        Ok(self.kind(path).await? != RemoteKind::Missing)
    }

    /// Type, size, permissions and times of a path. Symbolic links are followed only with `follow`.
    pub async fn stat(&self, path: &str, follow: bool) -> Result<FileInfo, ClientError> {
        let endpoint = endpoint("files/stat", path, if follow { "&follow=true" } else { "" });
        self.transport.fetch_json(call(Method::GET, endpoint, format!("look at `{path}`"))).await
    }

    /// Streams the content of a file. The download resumes after a broken connection if the file has not changed.
    pub async fn read(&self, path: &str) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>, ClientError> {
        Ok(self.download(path, 0, None).await?.into_stream())
    }

    /// Streams a part of a file: `length` bytes from `offset`, or everything from there on.
    pub async fn read_range(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>, ClientError> {
        Ok(self.download(path, offset, length).await?.into_stream())
    }

    /// Starts a download, whose size is known before anything is read.
    pub async fn download(&self, path: &str, offset: u64, length: Option<u64>) -> Result<Download, ClientError> {
        Download::begin(self.transport.as_ref().clone(), endpoint("files", path, ""), path, offset, length).await
    }

    /// Reads a whole file into memory. A file larger than `limit` (default 256 MiB) is an error before anything is
    /// read.
    pub async fn read_all(&self, path: &str, limit: Option<u64>) -> Result<Bytes, ClientError> {
        let room = |size| {
            let mut content = Vec::new();
            content.try_reserve_exact(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
            Ok(content)
        };
        Ok(self.read_into(path, limit, room).await?.into())
    }

    /// Like [`read_all`](Self::read_all), into a writer that `make` creates for the known size.
    pub async fn read_into<W: io::Write>(
        &self,
        path: &str,
        limit: Option<u64>,
        make: impl FnOnce(usize) -> io::Result<W>,
    ) -> Result<W, ClientError> {
        let mut download = self.download(path, 0, None).await?;
        let limit = limit.unwrap_or(MAX_RESPONSE_BYTES);
        let too_large = || ClientError::TooLarge { what: format!("`{path}`"), limit };
        let broken = |source| ClientError::Stream { operation: format!("read `{path}`"), source };
        let size = download.size().unwrap_or_default();
        if size > limit {
            return Err(too_large());
        }
        let no_memory = || ClientError::OutOfMemory { what: format!("`{path}`"), size };
        let made = usize::try_from(size).ok().and_then(|size| make(size).ok());
        let mut content = made.ok_or_else(no_memory)?;
        let mut left = limit;
        while let Some(chunk) = download.next().await.map_err(broken)? {
            left = left.checked_sub(chunk.len() as u64).ok_or_else(too_large)?;
            content.write_all(&chunk).map_err(broken)?;
        }
        Ok(content)
    }

    /// Writes a file from a stream atomically.
    pub async fn write(
        &self,
        path: &str,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), ClientError> {
        self.put(path, Payload::Stream(Box::pin(content), None), None, false).await
    }

    /// Writes a file atomically; retried after a broken connection.
    pub async fn write_all(&self, path: &str, content: impl Into<Bytes>) -> Result<(), ClientError> {
        self.put(path, Payload::Bytes(content.into()), None, false).await
    }

    /// Writes a file with permissions (octal, such as `0755`), or appends to it. Appending is never retried.
    pub async fn put(&self, path: &str, content: Payload, mode: Option<&str>, append: bool) -> Result<(), ClientError> {
        let mut more = String::new();
        if let Some(mode) = mode {
            more.push_str(&format!("&mode={}", utf8_percent_encode(mode, NON_ALPHANUMERIC)));
        }
        if append {
            more.push_str("&append=true");
        }
        let mut call = call(Method::PUT, endpoint("files", path, &more), format!("write `{path}`"));
        call.payload = content;
        // No timeout for uploads: the router restarts its own timeout while data is transferred.
        call.timeout = None;
        if append {
            call.retry = Retry::Never;
        }
        self.transport.send(call).await.map(drop)
    }

    /// The entries of a directory, sorted by name.
    pub async fn list(&self, path: &str) -> Result<Vec<FileInfo>, ClientError> {
        let endpoint = endpoint("files/list", path, "&limit=100000");
        let list: FileList = self.transport.fetch_json(call(Method::GET, endpoint, format!("list `{path}`"))).await?;
        if list.truncated {
            return Err(ClientError::TooLarge {
                what: format!("the listing of `{path}` (in entries)"),
                limit: 100_000,
            });
        }
        Ok(list.entries)
    }

    /// Files below a directory whose paths match a pattern such as `**/*.py`.
    pub async fn glob(&self, path: &str, pattern: &str) -> Result<Vec<FileInfo>, ClientError> {
        let pattern_text = utf8_percent_encode(pattern, NON_ALPHANUMERIC);
        let endpoint = endpoint("files/glob", path, &format!("&limit=100000&pattern={pattern_text}"));
        let list: FileList = self.transport.fetch_json(call(Method::GET, endpoint, format!("search `{path}`"))).await?;
        Ok(list.entries)
    }

    /// Lines of files below a directory that match a regular expression.
    pub async fn search(&self, path: &str, pattern: &str, glob: Option<&str>) -> Result<Vec<Match>, ClientError> {
        let mut more = format!("&pattern={}", utf8_percent_encode(pattern, NON_ALPHANUMERIC));
        if let Some(glob) = glob {
            more.push_str(&format!("&glob={}", utf8_percent_encode(glob, NON_ALPHANUMERIC)));
        }
        let endpoint = endpoint("files/search", path, &more);
        let found: SearchResult =
            self.transport.fetch_json(call(Method::GET, endpoint, format!("search `{path}`"))).await?;
        Ok(found.matches)
    }

    /// Removes a file, or with `recursive` a directory and everything in it.
    pub async fn remove(&self, path: &str, recursive: bool) -> Result<(), ClientError> {
        let endpoint = endpoint("files", path, if recursive { "&recursive=true" } else { "" });
        let mut call = call(Method::DELETE, endpoint, format!("remove `{path}`"));
        // A retry would report a file that the first attempt removed as missing.
        call.retry = Retry::Never;
        self.transport.send(call).await.map(drop)
    }

    /// Creates a directory and its parents. An existing directory is not an error.
    pub async fn mkdir(&self, path: &str) -> Result<(), ClientError> {
        let operation = FileOperation { path: Some(path.to_owned()), ..FileOperation::default() };
        self.change("mkdir", &operation, Retry::Safe, format!("make `{path}`")).await
    }

    /// Moves a file or a directory. An existing destination is replaced only with `overwrite`.
    pub async fn rename(&self, from: &str, to: &str, overwrite: bool) -> Result<(), ClientError> {
        let (source, target) = (Some(from.to_owned()), Some(to.to_owned()));
        let operation = FileOperation { from: source, to: target, overwrite, ..FileOperation::default() };
        self.change("move", &operation, Retry::Never, format!("move `{from}`")).await
    }

    /// Copies a file or a directory inside the sandbox.
    pub async fn copy(&self, from: &str, to: &str, overwrite: bool) -> Result<(), ClientError> {
        let (source, target) = (Some(from.to_owned()), Some(to.to_owned()));
        let operation = FileOperation { from: source, to: target, overwrite, ..FileOperation::default() };
        self.change("copy", &operation, Retry::Never, format!("copy `{from}`")).await
    }

    /// Sets permissions: octal, such as `0644`.
    pub async fn chmod(&self, path: &str, mode: &str) -> Result<(), ClientError> {
        let (target, mode) = (Some(path.to_owned()), Some(mode.to_owned()));
        let operation = FileOperation { path: target, mode, ..FileOperation::default() };
        self.change("chmod", &operation, Retry::Safe, format!("change `{path}`")).await
    }

    /// Streams changes below a path. This returns once the watch is established. The stream ends with an error if the
    /// connection breaks; changes after that are lost, so the caller has to scan again.
    pub async fn watch(
        &self,
        path: &str,
        recursive: bool,
    ) -> Result<impl Stream<Item = Result<Change, ClientError>> + Send + use<>, ClientError> {
        let endpoint = endpoint("files/watch", path, if recursive { "&recursive=true" } else { "" });
        let operation = format!("watch `{path}`");
        let mut call = call(Method::GET, endpoint, operation.clone());
        call.headers.insert(header::ACCEPT, HeaderValue::from_static("application/x-ndjson"));
        let mut lines = JsonLines::new(self.transport.send(call).await?);
        let name = self.transport.name().to_owned();
        let lost = move |message: String| {
            let (name, operation) = (name.clone(), operation.clone());
            ClientError::Disconnected { name, operation, message }
        };
        // The first line confirms that the watch is established.
        lines.next::<Change>().await.map_err(|broken| lost(error_message(broken)))?;
        Ok(futures::stream::try_unfold((lines, lost), async |(mut lines, lost)| match lines.next::<Change>().await {
            Ok(Some(change)) => Ok(Some((change, (lines, lost)))),
            Ok(None) => Err(lost("the stream ended".to_owned())),
            Err(broken) => Err(lost(error_message(broken))),
        }))
    }

    /// A directory as a tar stream.
    pub async fn read_tar(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>, ClientError> {
        let download =
            Download::begin(self.transport.as_ref().clone(), endpoint("files/tar", path, ""), path, 0, None).await?;
        Ok(download.into_stream())
    }

    /// Unpacks a tar stream into a directory, which is created if it is missing.
    pub async fn write_tar(
        &self,
        path: &str,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), ClientError> {
        let mut call = call(Method::PUT, endpoint("files/tar", path, ""), format!("unpack into `{path}`"));
        let archive: ByteStream = Box::pin(archive);
        call.payload = Payload::Stream(archive, None);
        call.timeout = None;
        self.transport.fetch_json::<Unpacked>(call).await.map(drop)
    }

    async fn change(
        &self,
        endpoint: &str,
        operation: &FileOperation,
        retry: Retry,
        description: String,
    ) -> Result<(), ClientError> {
        let mut call = call(Method::POST, format!("{PREFIX}/files/{endpoint}"), description).json(operation);
        call.retry = retry;
        self.transport.send(call).await.map(drop)
    }
}

fn error_message(broken: crate::events::LinesError) -> String {
    match broken {
        crate::events::LinesError::Connection(message) | crate::events::LinesError::Content(message) => message,
    }
}

fn call(method: Method, path: String, operation: String) -> Call {
    let mut call = Call::new(method, path, operation);
    call.timeout = Some(Duration::from_secs(60));
    call
}

fn endpoint(endpoint: &str, path: &str, more: &str) -> String {
    format!("{PREFIX}/{endpoint}?path={}{more}", utf8_percent_encode(path, NON_ALPHANUMERIC))
}
