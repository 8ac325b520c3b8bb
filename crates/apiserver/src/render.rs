//! Renders replies as HTTP responses: JSON, lists in chunks without copying each object twice, watches as a stream of
//! lines.

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::Value;

use crate::{
    convert::View,
    registry::Endpoint,
    status::ApiError,
    table::{IncludeObject, ResponseFormat},
    verbs::{List, Payload, Reply, WatchEvent, WatchEvents},
};

mod tables;
mod yaml;

pub use yaml::error_response as yaml_error_response;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of every response.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A JSON response with a status code.
pub fn json_response(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub fn value_response(code: StatusCode, value: &Value) -> Response<Body> {
    json_response(code, value.to_string())
}

pub fn error_response(error: &ApiError) -> Response<Body> {
    if error.is_plain_text() {
        let mut response = json_response(error.code, format!("{}\n", error.message));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        return response;
    }
    let mut response = value_response(error.code, &error.to_value());
    if let Some(seconds) = error.details.as_ref().and_then(|d| d.retry_after_seconds) {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// A body that is streamed in chunks.
pub fn stream<E: Into<BoxError>>(chunks: impl Stream<Item = Result<Bytes, E>> + Send + 'static) -> Body {
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data).map_err(Into::into))).boxed_unsync()
}

/// Renders a reply of `endpoint` in the negotiated format.
pub fn reply_response(
    endpoint: &Endpoint,
    reply: Reply,
    format: ResponseFormat,
    include: IncludeObject,
) -> Response<Body> {
    let mut response = match (format, reply.payload) {
        (_, Payload::Value(value)) => value_response(reply.code, &value),
        (ResponseFormat::Json, Payload::Object(view)) => json_response(reply.code, view.to_json()),
        (ResponseFormat::Lean, Payload::Object(view)) => json_response(reply.code, lean_json(&view)),
        (ResponseFormat::Json | ResponseFormat::Lean, Payload::List(list)) => list_response(reply.code, endpoint, list),
        (ResponseFormat::Json, Payload::Watch(events)) => {
            watch_response(events, |event| event_line(&event, View::write_json))
        }
        (ResponseFormat::Lean, Payload::Watch(events)) => {
            watch_response(events, |event| event_line(&event, View::write_lean))
        }
        (ResponseFormat::Yaml, payload) => yaml::respond(endpoint, reply.code, payload),
        (ResponseFormat::Table, payload) => tables::respond(endpoint, reply.code, payload, include),
        (ResponseFormat::Metadata, payload) => tables::respond_metadata(reply.code, payload),
    };
    add_warnings(&mut response, &reply.warnings);
    response
}

/// `Warning: 299 - "text"`, one header per warning.
pub fn add_warnings<B>(response: &mut Response<B>, warnings: &[String]) {
    for text in warnings {
        let clean: String = text.chars().filter(|c| !c.is_control()).collect();
        let quoted = format!("299 - \"{}\"", clean.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_str(&quoted) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// `metadata` of a list: its resource version and the token to continue it.
fn list_metadata(list: &List) -> Value {
    let mut metadata = serde_json::json!({ "resourceVersion": list.version.to_string() });
    if !list.next.is_empty() {
        metadata["continue"] = list.next.as_str().into();
    }
    if let Some(remaining) = list.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}

/// `kind`, `apiVersion` and `metadata` of a list of whole objects.
fn list_header(list: &List, endpoint: &Endpoint) -> Value {
    let mut metadata = list_metadata(list);
    // As in Kubernetes, lists of custom kinds have the continue token even if it is empty.
    if endpoint.resource.is_custom() {
        metadata["continue"] = list.next.as_str().into();
    }
    serde_json::json!({
        "kind": endpoint.resource.list_kind,
        "apiVersion": endpoint.api_version(),
        "metadata": metadata,
    })
}

/// Size of the chunks in which a list is serialised, so that the text of a large list is never in memory as a whole.
const LIST_CHUNK_BYTES: usize = 256 << 10;

fn list_response(code: StatusCode, endpoint: &Endpoint, list: List) -> Response<Body> {
    let head = list_header(&list, endpoint).to_string();
    let mut out = BytesMut::new();
    out.put_slice(&head.as_bytes()[..head.len() - 1]);
    out.put_slice(b",\"items\":[");
    let typed = endpoint.resource.is_custom();
    let mut chunks = ListChunks { items: list.items.into_iter(), typed, first: true, ended: false };
    let first = chunks.next_chunk(out).unwrap_or_default();
    if chunks.ended {
        return json_response(code, first);
    }
    let rest = std::iter::from_fn(move || chunks.next_chunk(BytesMut::new()));
    let mut response = Response::new(stream(stream::iter(std::iter::once(first).chain(rest).map(Ok::<_, BoxError>))));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

struct ListChunks {
    items: std::vec::IntoIter<View>,
    /// True if items have `apiVersion` and `kind`, as those of custom kinds do.
    typed: bool,
    first: bool,
    ended: bool,
}

impl ListChunks {
    /// Appends the next chunk of the list to `out`; `None` after the end.
    fn next_chunk(&mut self, mut out: BytesMut) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        while out.len() < LIST_CHUNK_BYTES {
            let Some(item) = self.items.next() else {
                out.put_slice(b"]}");
                self.ended = true;
                break;
            };
            if !std::mem::take(&mut self.first) {
                out.put_u8(b',');
            }
            out.reserve(item.json_len() + 3);
            match self.typed {
                true => item.write_json(&mut out),
                false => item.write_untyped_json(&mut out),
            }
        }
        Some(out.freeze())
    }
}

fn lean_json(view: &View) -> Bytes {
    let mut out = BytesMut::with_capacity(view.json_len());
    view.write_lean(&mut out);
    out.freeze()
}

/// One line of a JSON watch.
pub fn event_line(event: &WatchEvent, write: impl Fn(&View, &mut BytesMut)) -> Bytes {
    let mut out = BytesMut::with_capacity(event.object.json_len() + 32);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(event.kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    write(&event.object, &mut out);
    out.put_slice(b"}\n");
    out.freeze()
}

/// Streams a watch; `line` renders one event, newline included.
pub fn watch_response(events: WatchEvents, line: impl Fn(WatchEvent) -> Bytes + Send + 'static) -> Response<Body> {
    let frames = stream::unfold((events, line), |(mut events, line)| async move {
        let batch = events.next().await?;
        let bytes = match batch.len() {
            1 => batch.into_iter().map(&line).next().unwrap_or_default(),
            _ => batch
                .into_iter()
                .map(&line)
                .fold(BytesMut::new(), |mut all, one| {
                    all.put_slice(&one);
                    all
                })
                .freeze(),
        };
        Some((Ok::<_, BoxError>(Frame::data(bytes)), (events, line)))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
