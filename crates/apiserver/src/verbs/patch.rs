//! patch, by media type.

use serde_json::Value;

use super::{Context, Reply, body, update::modify};
use crate::{patch, request::WriteOptions, status::ApiError};

const ACCEPTED: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

pub(super) async fn patch(context: &mut Context<'_>, raw: &[u8]) -> Result<Reply, ApiError> {
    let options = WriteOptions::parse(&context.parts.uri, context.agent())?;
    let media = context.content_type().split(';').next().unwrap_or_default().trim().to_owned();
    match media.as_str() {
        "application/merge-patch+json" => {
            let patch = body::from_json(raw)?;
            modify(context, &options, |old| ready(patch::merge(old, &patch))).await
        }
        "application/json-patch+json" => {
            let operations = patch::JsonPatch::parse(raw)?;
            modify(context, &options, |old| ready(operations.apply(old))).await
        }
        other => Err(ApiError::unsupported_media_type(other, ACCEPTED)),
    }
}

async fn ready(result: Result<Value, ApiError>) -> Result<Value, ApiError> {
    result
}
