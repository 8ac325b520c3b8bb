//! Reads a request's JSON body. Media types that a web page can send to another origin without asking first are refused.

use agent_sandbox_protocol::web::BodyKind;
use bytes::Bytes;
use http::Request;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::http_io::body::{self, Body};

/// The whole body, of at most `limit` bytes. A body without a media type counts as JSON.
pub(super) async fn collect(request: Request<Body>, limit: usize) -> Result<Bytes, ApiError> {
    if BodyKind::of(request.headers()) == BodyKind::Form {
        body::discard(request.into_body()).await;
        return Err(ApiError::invalid("the body must be JSON: send it with Content-Type: application/json"));
    }
    Ok(body::collect(request.into_body(), limit).await?)
}

/// The body as a value.
pub(super) async fn read<T: DeserializeOwned>(request: Request<Body>, limit: usize) -> Result<T, ApiError> {
    let bytes = collect(request, limit).await?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError::invalid(format!("request body: {error}")))
}
