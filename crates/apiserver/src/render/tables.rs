//! Renders replies as tables and as PartialObjectMetadata.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Body, list_metadata, value_response, watch_response};
use crate::{
    registry::Endpoint,
    table::{IncludeObject, Printer, partial_object_metadata, table_metadata},
    verbs::{Payload, WatchEvent},
};

pub(super) fn respond(
    endpoint: &Endpoint,
    code: StatusCode,
    payload: Payload,
    include: IncludeObject,
) -> Response<Body> {
    let printer = Printer::new(endpoint, include);
    let now = Timestamp::now();
    match payload {
        Payload::Object(view) => {
            let object = view.to_value();
            value_response(code, &printer.table(table_metadata(&object), vec![printer.row(&object, now)]))
        }
        Payload::List(list) => {
            let rows = list.items.iter().map(|view| printer.row(&view.to_value(), now)).collect();
            value_response(code, &printer.table(list_metadata(&list), rows))
        }
        Payload::Watch(events) => {
            let first = AtomicBool::new(true);
            watch_response(events, move |event| event_table(&printer, event, first.swap(false, Ordering::Relaxed)))
        }
        Payload::Value(value) => value_response(code, &value),
    }
}

/// Renders a watch event. Only the first one contains the column definitions.
fn event_table(printer: &Printer, event: WatchEvent, first: bool) -> Bytes {
    let object = event.object.to_value();
    let table = match event.kind {
        "ERROR" => object,
        kind => {
            let row =
                if kind == "BOOKMARK" { printer.empty_row(&object) } else { printer.row(&object, Timestamp::now()) };
            let metadata = table_metadata(&object);
            if first { printer.table(metadata, vec![row]) } else { printer.continuation(metadata, vec![row]) }
        }
    };
    line(event.kind, &table)
}

pub(super) fn respond_metadata(code: StatusCode, payload: Payload) -> Response<Body> {
    match payload {
        Payload::Object(view) => value_response(code, &partial_object_metadata(&view.to_value())),
        Payload::List(list) => {
            let items: Vec<Value> = list.items.iter().map(|view| partial_object_metadata(&view.to_value())).collect();
            let body = json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": list_metadata(&list),
                "items": items,
            });
            value_response(code, &body)
        }
        Payload::Watch(events) => watch_response(events, |event| {
            let object = event.object.to_value();
            line(event.kind, &if event.kind == "ERROR" { object } else { partial_object_metadata(&object) })
        }),
        Payload::Value(value) => value_response(code, &value),
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    let mut text = json!({"type": kind, "object": object}).to_string();
    text.push('\n');
    text.into()
}
