//! Converts JSON to CEL values: field names are escaped, times and durations typed by the schema.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use base64::Engine as _;
use kube_cel::cel::{
    Context, Program, Value as Cel,
    objects::{Key, Map, OptionalValue},
};
use serde_json::Value;

use super::selection::Selection;
use crate::schema::{Schema, Type};

/// Converts the selected part of a value.
pub(super) fn to_cel(schema: &Schema, value: &Value, wanted: &Selection) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) if schema.kind == Type::Number => Cel::Float(n.as_f64().unwrap_or_default()),
        Value::Number(n) => n.as_i64().map_or_else(|| Cel::Float(n.as_f64().unwrap_or_default()), Cel::Int),
        Value::String(text) => string(schema, text),
        Value::Array(items) => {
            let child = schema.items.as_deref().unwrap_or(&ANYTHING);
            Cel::List(Arc::new(items.iter().map(|item| to_cel(child, item, &Selection::Everything)).collect()))
        }
        Value::Object(members) => {
            let is_map = schema.properties.is_empty() && schema.additional.is_some();
            let map: HashMap<Key, Cel> = members
                .iter()
                .filter_map(|(name, member)| {
                    let key = if is_map { Cow::Borrowed(name.as_str()) } else { escape(name) };
                    let wanted = wanted.member(&key)?;
                    let child = schema.member(name).unwrap_or(&ANYTHING);
                    let converted = if wanted.is_presence() { Cel::Null } else { to_cel(child, member, wanted) };
                    Some((Key::String(Arc::new(key.into_owned())), converted))
                })
                .collect();
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

/// The schema of values without a declared one.
static ANYTHING: LazyLock<Schema> = LazyLock::new(Schema::default);

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

thread_local! {
    /// Programs that convert times and durations with CEL's own functions, so that they are comparable with values that
    /// rules create.
    static CONVERSIONS: (Context<'static>, Option<Program>, Option<Program>) =
        (Context::default(), Program::compile("timestamp(text)").ok(), Program::compile("duration(text)").ok());
}

fn typed(format: &str, text: &str) -> Option<Cel> {
    CONVERSIONS.with(|(functions, time, duration)| {
        let program = if format == "date-time" { time } else { duration };
        let mut context = functions.new_inner_scope();
        context.add_variable_from_value("text", Cel::String(Arc::new(text.to_owned())));
        program.as_ref()?.execute(&context).ok()
    })
}

/// Reserved words of CEL. A field with such a name is escaped, for example as `__namespace__`.
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

/// Escapes a field name as rules must write it.
pub(super) fn escape(name: &str) -> Cow<'_, str> {
    if RESERVED.contains(&name) {
        return format!("__{name}__").into();
    }
    if !name.contains(['.', '-', '/']) && !name.contains("__") {
        return name.into();
    }
    let escaped = name
        .replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__");
    escaped.into()
}
