//! A file download that resumes after a broken connection, as long as the file has not changed.

use crate::{Call, ClientError, Transport};
use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::io;

/// Maximum number of consecutive resumes without any new data.
const MAX_RESUMES: u32 = 5;

/// A running download.
pub struct Download {
    transport: Transport,
    endpoint: String,
    path: String,
    body: Incoming,
    /// ETag of the content; without it the download cannot be resumed.
    validator: Option<HeaderValue>,
    size: Option<u64>,
    offset: u64,
    end: Option<u64>,
    received: u64,
    left: u32,
}

impl Download {
    pub(crate) async fn begin(
        transport: Transport,
        endpoint: String,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Self, ClientError> {
        let end = length.map(|length| offset.saturating_add(length));
        let response = request_range(&transport, &endpoint, path, offset, end, None).await?;
        let size = content_length(response.headers());
        let validator = response.headers().get(header::ETAG).cloned();
        let body = response.into_body();
        let (path, received, left) = (path.to_owned(), 0, MAX_RESUMES);
        Ok(Self { transport, endpoint, path, body, validator, size, offset, end, received, left })
    }

    /// Size of the content, if the response had a `Content-Length`.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The next chunk; `None` at the end.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.received += data.len() as u64;
                    self.left = MAX_RESUMES;
                    return Ok(Some(data));
                }
                None => return Ok(None),
                Some(Err(error)) => self.resume(error).await?,
            }
        }
    }

    async fn resume(&mut self, broken: hyper::Error) -> io::Result<()> {
        let Some(validator) = self.validator.clone().filter(|_| self.left > 0) else {
            return Err(io::Error::other(broken));
        };
        self.left -= 1;
        let from = self.offset + self.received;
        let response =
            request_range(&self.transport, &self.endpoint, &self.path, from, self.end, Some(&validator)).await;
        let response = response.map_err(io::Error::other)?;
        // A complete instead of a partial response means that the file has changed.
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(io::Error::other("the file changed while it was being read"));
        }
        self.body = response.into_body();
        Ok(())
    }

    pub fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
        futures::stream::try_unfold(self, async |mut download| {
            Ok(download.next().await?.map(|chunk| (chunk, download)))
        })
    }
}

async fn request_range(
    transport: &Transport,
    endpoint: &str,
    path: &str,
    offset: u64,
    end: Option<u64>,
    validator: Option<&HeaderValue>,
) -> Result<Response<Incoming>, ClientError> {
    let mut call = Call::new(Method::GET, endpoint, format!("read `{path}`"));
    let range = match end {
        Some(end) => Some(format!("bytes={offset}-{}", end.saturating_sub(1))),
        None if offset > 0 => Some(format!("bytes={offset}-")),
        None => None,
    };
    if let Some(range) = range {
        call = call.header(header::RANGE, &range)?;
    }
    if let Some(validator) = validator {
        call.headers.insert(header::IF_RANGE, validator.clone());
    }
    transport.send(call).await
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
