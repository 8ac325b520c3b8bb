//! JSON values as CEL sees them: names escaped, times and durations typed by the schema.

use std::{collections::HashMap, sync::Arc};

use base64::Engine as _;
use kube_cel::cel::{
    Value as Cel,
    objects::{Key, Map, OptionalValue},
};
use serde_json::Value;

use crate::schema::{Schema, Type};

pub(super) fn to_cel(schema: &Schema, value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) if schema.kind == Type::Number => Cel::Float(n.as_f64().unwrap_or_default()),
        Value::Number(n) => n.as_i64().map_or_else(|| Cel::Float(n.as_f64().unwrap_or_default()), Cel::Int),
        Value::String(text) => string(schema, text),
        Value::Array(items) => {
            let anything = Schema::default();
            let child = schema.items.as_deref().unwrap_or(&anything);
            Cel::List(Arc::new(items.iter().map(|item| to_cel(child, item)).collect()))
        }
        Value::Object(members) => {
            let anything = Schema::default();
            let is_map = schema.properties.is_empty() && schema.additional.is_some();
            let map: HashMap<Key, Cel> = members
                .iter()
                .map(|(name, member)| {
                    let child = schema.member(name).unwrap_or(&anything);
                    let key = if is_map { name.clone() } else { escape(name) };
                    (Key::String(Arc::new(key)), to_cel(child, member))
                })
                .collect();
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

pub(super) fn optional(value: Option<Cel>) -> Cel {
    let optional = match value {
        Some(value) => OptionalValue::of(value),
        None => OptionalValue::none(),
    };
    Cel::Opaque(Arc::new(optional))
}

fn string(schema: &Schema, text: &str) -> Cel {
    let plain = || Cel::String(Arc::new(text.to_owned()));
    match schema.format() {
        Some("byte") => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_or_else(|_| plain(), |bytes| Cel::Bytes(Arc::new(bytes))),
        Some(format @ ("date-time" | "duration")) => typed(format, text).unwrap_or_else(plain),
        _ => plain(),
    }
}

/// Times and durations come from CEL's own conversions, so that they compare with the literals of a rule.
fn typed(format: &str, text: &str) -> Option<Cel> {
    use kube_cel::cel::{Context, Program};
    let function = if format == "date-time" { "timestamp(text)" } else { "duration(text)" };
    let mut context = Context::default();
    context.add_variable_from_value("text", Cel::String(Arc::new(text.to_owned())));
    Program::compile(function).ok()?.execute(&context).ok()
}

/// Words that CEL reserves; fields of that name are written `__namespace__`.
const RESERVED: &[&str] = &[
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// A field name as rules must write it.
pub(super) fn escape(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    if !name.contains(['.', '-', '/']) && !name.contains("__") {
        return name.to_owned();
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}
