//! A minimal gRPC client for unary calls.

use crate::{
    ClientError, Transport,
    transport::{client_error_in, error_chain},
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::{BodyExt, Limited};
use std::time::Duration;

/// Maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
const DEADLINE_EXCEEDED: u16 = 4;

/// Sends one message and returns the response message.
pub(crate) async fn unary(
    transport: &Transport,
    port: u16,
    path: &str,
    message: Vec<u8>,
    limit: Duration,
    operation: &str,
) -> Result<Bytes, ClientError> {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
    let milliseconds = format!("{}m", limit.as_millis().clamp(1, 99_999_999));
    let milliseconds = HeaderValue::try_from(milliseconds).expect("digits and a letter");
    headers.insert(HeaderName::from_static("grpc-timeout"), milliseconds);
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).map_err(|_| too_large(operation))?);
    frame.put_slice(&message);
    let late = || ClientError::CallTimeout {
        name: transport.name().to_owned(),
        operation: operation.to_owned(),
        after: limit,
    };
    let exchange = async {
        let sent = transport.send_http2(path, port, headers, limit, frame.freeze()).await?;
        let response = sent.map_err(|error| {
            let (name, operation) = (transport.name().to_owned(), operation.to_owned());
            let message = error_chain(&error);
            if error.is_connect() {
                client_error_in(error).unwrap_or(ClientError::Disconnected { name, operation, message })
            } else {
                ClientError::OutcomeUnknown { name, operation, message }
            }
        })?;
        let status = response.status();
        let first = grpc_status(response.headers());
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| ClientError::OutcomeUnknown {
            name: transport.name().to_owned(),
            operation: operation.to_owned(),
            message: error.to_string(),
        })?;
        let last = body.trailers().and_then(grpc_status).or(first);
        Ok((status, last, body.to_bytes()))
    };
    // The daemon enforces the deadline; the local one is later, so that the daemon's response still arrives.
    let (status, last, mut bytes) =
        tokio::time::timeout(limit + Duration::from_secs(5), exchange).await.map_err(|_| late())??;
    match last {
        Some((0, _)) if bytes.len() >= 5 => {
            bytes.advance(5);
            Ok(bytes)
        }
        Some((DEADLINE_EXCEEDED, _)) => Err(late()),
        other => {
            let (code, message) = other.unwrap_or((2, format!("no gRPC status in an answer {status}")));
            Err(ClientError::Refused {
                name: transport.name().to_owned(),
                operation: operation.to_owned(),
                status: status.as_u16(),
                code: None,
                message: format!("gRPC status {code}: {message}"),
                body: Bytes::new(),
            })
        }
    }
}

fn too_large(operation: &str) -> ClientError {
    ClientError::TooLarge { what: format!("the message of {operation}"), limit: u64::from(u32::MAX) }
}

fn grpc_status(headers: &HeaderMap) -> Option<(u16, String)> {
    let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message = headers
        .get("grpc-message")
        .map(|value| percent_encoding::percent_decode(value.as_bytes()).decode_utf8_lossy().into_owned());
    Some((code, message.unwrap_or_default()))
}
