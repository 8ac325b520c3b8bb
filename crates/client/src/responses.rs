//! Responses read as a whole: collected up to a size limit and decoded.

use crate::{Call, ClientError, Transport};
use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use std::io;

/// Maximum size of a response that is collected in memory, unless the caller allows more.
pub(crate) const MAX_RESPONSE_BYTES: u64 = 256 << 20;

impl Transport {
    /// Sends a request and collects the response body.
    pub async fn fetch(&self, call: Call) -> Result<Bytes, ClientError> {
        let operation = call.operation.clone();
        let response = self.send(call).await?;
        self.collect(response, MAX_RESPONSE_BYTES, &operation).await
    }

    /// Sends a request and decodes the JSON response.
    pub async fn fetch_json<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let operation = call.operation.clone();
        let bytes = self.fetch(call).await?;
        self.decode(bytes, &operation)
    }

    /// Collects the whole body. A `Content-Length` above the limit is an error before anything is read.
    pub(crate) async fn collect(
        &self,
        response: Response<Incoming>,
        limit: u64,
        operation: &str,
    ) -> Result<Bytes, ClientError> {
        let too_large = || ClientError::TooLarge { what: format!("the answer to {operation}"), limit };
        let announced = response.headers().get(http::header::CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        match Limited::new(response.into_body(), limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
            Err(error) => Err(ClientError::Stream { operation: operation.to_owned(), source: io::Error::other(error) }),
        }
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, bytes: Bytes, operation: &str) -> Result<T, ClientError> {
        serde_json::from_slice(&bytes).map_err(|_| ClientError::Unsupported { operation: operation.to_owned() })
    }
}
