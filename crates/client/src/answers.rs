//! Whole answers: collected, bounded and decoded.

use crate::{Call, ClientError, Transport};
use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use std::io;

/// The largest answer that is kept in memory unless the caller allows more.
pub(crate) const MAX_ANSWER: u64 = 256 << 20;

impl Transport {
    /// Sends a request and collects the answer.
    pub async fn fetch(&self, call: Call) -> Result<Bytes, ClientError> {
        let operation = call.operation.clone();
        let answer = self.send(call).await?;
        self.collect(answer, MAX_ANSWER, &operation).await
    }

    /// Sends a request and decodes the answer.
    pub async fn ask<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let operation = call.operation.clone();
        let bytes = self.fetch(call).await?;
        self.decode(bytes, &operation)
    }

    /// The whole body, if it is no larger than allowed: known from its length before anything is read.
    pub(crate) async fn collect(
        &self,
        answer: Response<Incoming>,
        limit: u64,
        operation: &str,
    ) -> Result<Bytes, ClientError> {
        let too_large = || ClientError::TooLarge { what: format!("the answer to {operation}"), limit };
        let announced = answer.headers().get(http::header::CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        match Limited::new(answer.into_body(), limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
            Err(error) => Err(ClientError::Stream { operation: operation.to_owned(), source: io::Error::other(error) }),
        }
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, bytes: Bytes, operation: &str) -> Result<T, ClientError> {
        serde_json::from_slice(&bytes).map_err(|_| ClientError::Unsupported { operation: operation.to_owned() })
    }
}
