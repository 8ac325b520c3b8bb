//! Replies as HTTP responses: JSON, lists without copying each object twice, watches as a stream of lines.

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::Value;

use crate::{
    registry::Endpoint,
    status::ApiError,
    table::{Form, IncludeObject},
    verbs::{List, Payload, Reply},
    watch::{WatchEvent, WatchEvents},
};

mod tables;

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
        (Form::Json, Payload::List(list)) => json_response(reply.code, list_json(endpoint, &list)),
        (Form::Json, Payload::Watch(events)) => watch_response(events, |event| event_line(&event)),
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

fn list_json(endpoint: &Endpoint, list: &List) -> Bytes {
    let head = serde_json::json!({
        "kind": endpoint.resource.list_kind,
        "apiVersion": endpoint.api_version(),
        "metadata": list_metadata(list),
    })
    .to_string();
    let parts: Vec<Bytes> = list.items.iter().map(crate::convert::View::to_json).collect();
    let size = head.len() + 16 + parts.iter().map(|p| p.len() + 1).sum::<usize>();
    let mut out = BytesMut::with_capacity(size);
    out.put_slice(&head.as_bytes()[..head.len() - 1]);
    out.put_slice(b",\"items\":[");
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            out.put_u8(b',');
        }
        out.put_slice(part);
    }
    out.put_slice(b"]}");
    out.freeze()
}

/// One line of a JSON watch.
pub fn event_line(event: &WatchEvent) -> Bytes {
    let object = event.object.to_json();
    let mut out = BytesMut::with_capacity(object.len() + 32);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(event.kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(&object);
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
