//! Renders replies as YAML.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use super::{Body, event_line, full, list_header, watch_response};
use crate::{convert::View, registry::Endpoint, status::ApiError, verbs::Payload};

pub(super) fn respond(endpoint: &Endpoint, code: StatusCode, payload: Payload) -> Response<Body> {
    match payload {
        Payload::Object(view) => response(code, &view.to_value()),
        Payload::List(list) => {
            let typed = endpoint.resource.is_custom();
            let items = list.items.iter().map(|view| if typed { view.to_value() } else { view.to_untyped_value() });
            let mut body = list_header(&list, endpoint);
            body["items"] = items.collect::<Vec<Value>>().into();
            response(code, &body)
        }
        // Watches stay JSON: clients do not agree on an end marker for a stream of YAML documents.
        Payload::Watch(events) => watch_response(events, |event| event_line(&event, View::write_json)),
        Payload::Value(value) => response(code, &value),
    }
}

/// An error response for a client that accepts only YAML.
pub fn error_response(error: &ApiError) -> Response<Body> {
    response(error.code, &error.to_value())
}

fn response(code: StatusCode, value: &Value) -> Response<Body> {
    // Fall back to JSON, which is valid YAML, should the serialiser ever fail.
    let text = serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string());
    let mut response = Response::new(full(text));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_yaml_parses_to_the_same_value() {
        let value = json!({"kind": "K", "text": "yes", "number": "1", "null": null, "empty": {}, "list": [], "lines": "a\nb\n",
            "nested": [{"a": ["x: y", "# no comment", "- no item", " padded "]}], "time": "2024-01-01T00:00:00Z", "tilde": "~"});
        let text = serde_saphyr::to_string(&value).unwrap();
        assert!(text.contains("kind: K"), "{text}");
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value, "{text}");
    }
}
