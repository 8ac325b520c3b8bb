//! Objects as `Table`, which kubectl prints, and as `PartialObjectMetadata`.
//!
//! | module | does |
//! |---|---|
//! | [`accept`] | negotiates the response format from the `Accept` header |
//! | [`columns`] | columns and cells of each built-in kind |
//! | [`pods`] | the cells of a Pod, whose status column summarises all its containers |
//! | [`jsonpath`] | the JSONPath of custom columns |
//! | [`age`] | ages in kubectl's format |

pub mod accept;
mod age;
mod columns;
pub mod jsonpath;
mod pods;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use self::jsonpath::JsonPath;
use crate::registry::{Endpoint, Origin, PrinterColumn};

pub use accept::{IncludeObject, ResponseFormat};

/// One column's definition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
}

impl Column {
    fn to_value(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.kind,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        })
    }
}

type Cells = Box<dyn Fn(&Value, Timestamp) -> Vec<Value> + Send + Sync>;

/// Prints the objects of one endpoint.
pub struct Printer {
    columns: Vec<Column>,
    cells: Cells,
    include: IncludeObject,
}

impl Printer {
    pub fn new(endpoint: &Endpoint, include: IncludeObject) -> Self {
        let resource = &endpoint.resource;
        let (columns, cells) = match resource.origin {
            Origin::Custom { .. } => custom(&endpoint.version().columns),
            _ => columns::builtin(&resource.group, &resource.plural),
        };
        Self { columns, cells, include }
    }

    /// A table with column definitions; `metadata` is that of the list or object.
    pub fn table(&self, metadata: Value, rows: Vec<Value>) -> Value {
        let mut table = self.continuation(metadata, rows);
        table["columnDefinitions"] = self.columns.iter().map(Column::to_value).collect();
        table
    }

    /// A later table of a watch, without column definitions, which the first one contained.
    pub fn continuation(&self, metadata: Value, rows: Vec<Value>) -> Value {
        json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": [], "rows": rows})
    }

    pub fn row(&self, object: &Value, now: Timestamp) -> Value {
        json!({"cells": (self.cells)(object, now), "object": self.included(object)})
    }

    /// The row of a bookmark: its cells are null.
    pub fn empty_row(&self, object: &Value) -> Value {
        json!({"cells": vec![Value::Null; self.columns.len()], "object": partial_object_metadata(object)})
    }

    fn included(&self, object: &Value) -> Value {
        match self.include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial_object_metadata(object),
            IncludeObject::Object => object.clone(),
        }
    }
}

/// The object as `PartialObjectMetadata`.
pub fn partial_object_metadata(object: &Value) -> Value {
    let metadata = object.get("metadata").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

/// `metadata` of a table with a single object: its resource version.
pub fn table_metadata(object: &Value) -> Value {
    match object["metadata"].get("resourceVersion") {
        Some(version) => json!({"resourceVersion": version}),
        None => json!({}),
    }
}

fn column(name: &str, kind: &str, priority: i64) -> Column {
    let format = if name == "Name" { "name" } else { "" };
    Column { name: name.into(), kind: kind.into(), format: format.into(), description: String::new(), priority }
}

fn custom(columns: &[PrinterColumn]) -> (Vec<Column>, Cells) {
    let age = PrinterColumn {
        name: "Age".into(),
        kind: "date".into(),
        json_path: ".metadata.creationTimestamp".into(),
        ..PrinterColumn::default()
    };
    let columns: Vec<PrinterColumn> = if columns.is_empty() { vec![age] } else { columns.to_vec() };
    let mut definitions = vec![column("Name", "string", 0)];
    definitions.extend(columns.iter().map(|printed| Column {
        name: printed.name.clone(),
        kind: printed.kind.clone(),
        format: printed.format.clone(),
        description: printed.description.clone(),
        priority: printed.priority,
    }));
    let paths: Vec<(String, Option<JsonPath>)> =
        columns.into_iter().map(|printed| (printed.kind, JsonPath::parse(&printed.json_path).ok())).collect();
    let cells = move |object: &Value, now: Timestamp| {
        let mut cells = vec![object["metadata"]["name"].clone()];
        cells.extend(paths.iter().map(|(kind, path)| {
            let found = path.as_ref().map(|path| path.find(object)).unwrap_or_default();
            custom_cell(kind, &found, now)
        }));
        cells
    };
    (definitions, Box::new(cells))
}

fn custom_cell(kind: &str, found: &[&Value], now: Timestamp) -> Value {
    let Some(first) = found.first().filter(|value| !value.is_null()) else { return Value::Null };
    match kind {
        "integer" => match first {
            Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|float| float as i64)).into(),
            _ => Value::Null,
        },
        "number" if first.is_number() => (*first).clone(),
        "boolean" if first.is_boolean() => (*first).clone(),
        "date" => match first.as_str() {
            Some(text) => {
                text.parse::<Timestamp>().map_or_else(|_| "<invalid>".into(), |time| age::since(time, now)).into()
            }
            None => "<invalid>".into(),
        },
        "string" => found.iter().map(|value| plain(value)).collect::<Vec<_>>().join(" ").into(),
        _ => Value::Null,
    }
}

/// Strings without quotes, other values as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
