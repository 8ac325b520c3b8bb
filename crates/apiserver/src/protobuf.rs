//! Decodes request bodies in Kubernetes' protobuf encoding, which Go clients send for built-in kinds, to JSON.
//!
//! The descriptors of all messages are data (`data/kubernetes-protobuf.json`). Zero values are kept or omitted as Go's
//! JSON encoder would do. Kinds that are not built in are refused with 415. Responses are always JSON, which those
//! clients accept.

mod descriptors;
mod wire;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use serde_json::Value;

use crate::status::ApiError;

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Prefix of every Kubernetes protobuf body.
const MAGIC: &[u8] = b"k8s\0";

/// Why a protobuf body cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("it ends inside a field")]
    Truncated,
    #[error("a number is too long")]
    Varint,
    #[error("field {0} has the wrong wire type")]
    WireType(u32),
    #[error("text is not UTF-8")]
    Utf8,
    #[error("messages are nested too deeply")]
    Depth,
    #[error("a time is out of range")]
    Time,
}

/// Converts a protobuf body to JSON and adjusts `Content-Type`; other bodies pass through unchanged.
pub(crate) fn to_json(parts: &mut Parts, body: Bytes) -> Result<Bytes, ApiError> {
    let given = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if given.split(';').next().map(str::trim) != Some(MEDIA_TYPE) {
        return Ok(body);
    }
    // An empty body is left empty, whatever its content type.
    let json = if body.is_empty() { body } else { decode(&body)?.to_string().into() };
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(json)
}

/// Decodes the object in a protobuf body.
pub fn decode(body: &[u8]) -> Result<Value, ApiError> {
    let broken = |error: DecodeError| ApiError::bad_request(format!("the protobuf body is damaged: {error}"));
    let Some(body) = body.strip_prefix(MAGIC) else {
        return Err(ApiError::bad_request("the protobuf body does not start with the Kubernetes prefix"));
    };
    let envelope = Envelope::read(body).map_err(broken)?;
    let Some(message) = descriptors::message_of(&envelope.api_version, &envelope.kind) else {
        let why = format!("{MEDIA_TYPE} is not understood for kind {:?}: send application/json", envelope.kind);
        return Err(ApiError::new(http::StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", why));
    };
    let mut object = descriptors::decode(message, envelope.raw).map_err(broken)?;
    object["apiVersion"] = envelope.api_version.into();
    object["kind"] = envelope.kind.into();
    Ok(object)
}

/// `runtime.Unknown`, the envelope of every object: its type and its encoded bytes.
#[derive(Default)]
struct Envelope<'a> {
    api_version: String,
    kind: String,
    raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn read(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut envelope = Self::default();
        for field in wire::fields(body) {
            match field? {
                (1, wire::Field::Bytes(type_meta)) => {
                    for member in wire::fields(type_meta) {
                        match member? {
                            (1, wire::Field::Bytes(text)) => envelope.api_version = wire::text(text)?,
                            (2, wire::Field::Bytes(text)) => envelope.kind = wire::text(text)?,
                            _ => {}
                        }
                    }
                }
                (2, wire::Field::Bytes(raw)) => envelope.raw = raw,
                _ => {}
            }
        }
        Ok(envelope)
    }
}

#[cfg(test)]
mod tests;
