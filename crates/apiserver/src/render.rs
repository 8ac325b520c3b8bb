//! Replies as HTTP responses: JSON, lists without copying each object twice, watches as a stream of lines.

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
    table::{Form, IncludeObject},
    verbs::{List, Payload, Reply},
    watch::{WatchEvent, WatchEvents},
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
    let mut response = value_response(error.code, &error.to_value());
    if let Some(seconds) = error.details.as_ref().and_then(|d| d.retry_after_seconds) {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// A body that is sent piece by piece.
pub fn stream<E: Into<BoxError>>(pieces: impl Stream<Item = Result<Bytes, E>> + Send + 'static) -> Body {
    StreamBody::new(pieces.map(|piece| piece.map(Frame::data).map_err(Into::into))).boxed_unsync()
}

/// Renders a reply to `endpoint` in the form that the client asked for.
pub fn reply_response(endpoint: &Endpoint, reply: Reply, form: Form, include: IncludeObject) -> Response<Body> {
    let mut response = match (form, reply.payload) {
        (_, Payload::Value(value)) => value_response(reply.code, &value),
        (Form::Json, Payload::Object(view)) => json_response(reply.code, view.to_json()),
        (Form::Lean, Payload::Object(view)) => json_response(reply.code, lean_json(&view)),
        (Form::Json | Form::Lean, Payload::List(list)) => list_response(reply.code, endpoint, list),
        (Form::Json, Payload::Watch(events)) => watch_response(events, |event| event_line(&event, View::write_json)),
        (Form::Lean, Payload::Watch(events)) => watch_response(events, |event| event_line(&event, View::write_lean)),
        (Form::Yaml, payload) => yaml::respond(endpoint, reply.code, payload),
        (Form::Table, payload) => tables::respond(endpoint, reply.code, payload, include),
        (Form::Metadata, payload) => tables::respond_metadata(reply.code, payload),
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

/// `metadata` of a list: where it was read, and where it goes on.
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
fn list_head(list: &List, endpoint: &Endpoint) -> Value {
    let mut metadata = list_metadata(list);
    // Those of custom kinds have the token even when it is empty.
    if endpoint.resource.is_custom() {
        metadata["continue"] = list.next.as_str().into();
    }
    serde_json::json!({
        "kind": endpoint.resource.list_kind,
        "apiVersion": endpoint.api_version(),
        "metadata": metadata,
    })
}

/// Bytes of a list that are made at a time: a list of everything is never in memory as text as a whole.
const LIST_PIECE: usize = 256 << 10;

fn list_response(code: StatusCode, endpoint: &Endpoint, list: List) -> Response<Body> {
    let head = list_head(&list, endpoint).to_string();
    let mut out = BytesMut::new();
    out.put_slice(&head.as_bytes()[..head.len() - 1]);
    out.put_slice(b",\"items\":[");
    let typed = endpoint.resource.is_custom();
    let mut pieces = ListPieces { items: list.items.into_iter(), typed, first: true, ended: false };
    let first = pieces.next_piece(out).unwrap_or_default();
    if pieces.ended {
        return json_response(code, first);
    }
    let rest = std::iter::from_fn(move || pieces.next_piece(BytesMut::new()));
    let mut response = Response::new(stream(stream::iter(std::iter::once(first).chain(rest).map(Ok::<_, BoxError>))));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

struct ListPieces {
    items: std::vec::IntoIter<View>,
    /// Items of custom kinds carry their type.
    typed: bool,
    first: bool,
    ended: bool,
}

impl ListPieces {
    /// The next part of the list, after what `out` holds already; `None` after the end.
    fn next_piece(&mut self, mut out: BytesMut) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        while out.len() < LIST_PIECE {
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
