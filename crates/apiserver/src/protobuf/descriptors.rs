//! Descriptors of Kubernetes' messages, and the decoding of wire fields to JSON members with them.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::DecodeError;
use super::wire::{self, Field, fields, varint};

const TEXT: &str = include_str!("../../data/kubernetes-protobuf.json");
/// Maximum nesting depth of messages, deeper than any real object; bounds the stack.
const MAX_DEPTH: usize = 64;

struct FieldDescriptor {
    /// JSON name. Empty for an embedded message whose members belong to the enclosing one.
    name: &'static str,
    pointer: bool,
    omit_empty: bool,
    field_type: FieldType,
}

#[derive(Clone)]
enum FieldType {
    String,
    Bool,
    Int,
    Float,
    Bytes,
    /// A message that only holds a list of strings.
    Strings,
    Time,
    Quantity,
    IntOrString,
    /// JSON encoded as bytes.
    Raw,
    Message(&'static str),
    List(Box<FieldType>),
    Map(Box<FieldType>),
}

type MessageDescriptor = HashMap<u32, FieldDescriptor>;

static DESCRIPTORS: LazyLock<HashMap<&'static str, MessageDescriptor>> = LazyLock::new(|| {
    let raw: HashMap<&'static str, HashMap<&'static str, &'static str>> =
        serde_json::from_str(TEXT).expect("the data file is generated and tested");
    let message = |fields: HashMap<&'static str, &'static str>| -> MessageDescriptor {
        fields
            .into_iter()
            .map(|(number, field)| (number.parse().expect("a field number"), parse_field(field)))
            .collect()
    };
    raw.into_iter().map(|(name, fields)| (name, message(fields))).collect()
});

fn parse_field(field: &'static str) -> FieldDescriptor {
    let mut parts = field.splitn(3, ':');
    let mut next = || parts.next().expect("three parts in generated data");
    let (name, flags, field_type) = (next(), next(), next());
    FieldDescriptor {
        name,
        pointer: flags.contains('p'),
        omit_empty: flags.contains('o'),
        field_type: parse_type(field_type),
    }
}

fn parse_type(text: &'static str) -> FieldType {
    if let Some(item) = text.strip_prefix("[]") {
        return FieldType::List(Box::new(parse_type(item)));
    }
    if let Some(value) = text.strip_prefix("{}") {
        return FieldType::Map(Box::new(parse_type(value)));
    }
    match text {
        "string" => FieldType::String,
        "bool" => FieldType::Bool,
        "int" => FieldType::Int,
        "float" => FieldType::Float,
        "bytes" => FieldType::Bytes,
        "strings" => FieldType::Strings,
        "meta/v1.Time" | "meta/v1.MicroTime" => FieldType::Time,
        "api/resource.Quantity" => FieldType::Quantity,
        "util/intstr.IntOrString" => FieldType::IntOrString,
        "runtime.RawExtension" | "meta/v1.FieldsV1" => FieldType::Raw,
        message => FieldType::Message(message),
    }
}

/// The message name of a kind, if it is built in.
pub(super) fn message_of(api_version: &str, kind: &str) -> Option<&'static str> {
    let package = match api_version {
        // Clients send DeleteOptions with the API version of the deleted kind.
        _ if kind == "DeleteOptions" => "meta/v1".to_owned(),
        "v1" => "core/v1".to_owned(),
        versioned => {
            let (group, version) = versioned.split_once('/')?;
            format!("{}/{version}", group.split('.').next()?)
        }
    };
    DESCRIPTORS.get_key_value(format!("{package}.{kind}").as_str()).map(|(name, _)| *name)
}

pub(super) fn decode(message: &str, bytes: &[u8]) -> Result<Value, DecodeError> {
    let mut members = Map::new();
    read_message(message, bytes, &mut members, 0)?;
    Ok(Value::Object(members))
}

fn read_message(message: &str, bytes: &[u8], into: &mut Map<String, Value>, depth: usize) -> Result<(), DecodeError> {
    if depth > MAX_DEPTH {
        return Err(DecodeError::Depth);
    }
    let Some(descriptor) = DESCRIPTORS.get(message) else { return Ok(()) };
    for field in fields(bytes) {
        let (number, field) = field?;
        // Unknown fields (of a newer Kubernetes) are ignored, as Kubernetes' own decoder does.
        let Some(member) = descriptor.get(&number) else { continue };
        match (&member.field_type, field) {
            (FieldType::Message(inner), Field::Bytes(bytes)) if member.name.is_empty() => {
                read_message(inner, bytes, into, depth + 1)?;
            }
            (FieldType::List(item), field) => {
                let list = into.entry(member.name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = list {
                    read_items(item, number, field, list, depth)?;
                }
            }
            (FieldType::Map(value), Field::Bytes(entry)) => {
                let (key, value) = read_entry(value, entry, depth)?;
                let map = into.entry(member.name).or_insert_with(|| Value::Object(Map::new()));
                map[key] = value;
            }
            (field_type, field) => {
                let value = read_value(field_type, number, field, depth)?;
                if member.pointer || !(is_zero(field_type, &value) && (member.omit_empty || value.is_null())) {
                    into.insert(member.name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

/// True for values that Go's `omitempty` omits from JSON. Empty structs are not omitted.
fn is_zero(field_type: &FieldType, value: &Value) -> bool {
    match (field_type, value) {
        (_, Value::Null) => true,
        (FieldType::String | FieldType::Bytes, Value::String(text)) => text.is_empty(),
        (FieldType::Bool, Value::Bool(flag)) => !flag,
        (FieldType::Int | FieldType::Float, Value::Number(number)) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

/// Reads one item of a list, or several packed numbers.
fn read_items(
    item: &FieldType,
    number: u32,
    field: Field<'_>,
    list: &mut Vec<Value>,
    depth: usize,
) -> Result<(), DecodeError> {
    if let (FieldType::Int | FieldType::Bool, Field::Bytes(mut packed)) = (item, field) {
        while !packed.is_empty() {
            let value = Field::Varint(varint(&mut packed)?);
            list.push(read_value(item, number, value, depth)?);
        }
        return Ok(());
    }
    list.push(read_value(item, number, field, depth)?);
    Ok(())
}

fn read_entry(value: &FieldType, entry: &[u8], depth: usize) -> Result<(String, Value), DecodeError> {
    let (mut key, mut found) = (String::new(), None);
    for field in fields(entry) {
        match field? {
            (1, Field::Bytes(text)) => key = wire::text(text)?,
            (2, field) => found = Some(read_value(value, 2, field, depth)?),
            _ => {}
        }
    }
    // A missing value is the empty value of its type.
    let found = match found {
        Some(found) => found,
        None => read_value(value, 2, Field::Bytes(&[]), depth)?,
    };
    Ok((key, found))
}

fn read_value(field_type: &FieldType, number: u32, field: Field<'_>, depth: usize) -> Result<Value, DecodeError> {
    Ok(match (field_type, field) {
        (FieldType::Bool, Field::Varint(value)) => (value != 0).into(),
        (FieldType::Int, Field::Varint(value)) => value.cast_signed().into(),
        (FieldType::Float, Field::Fixed64(bits)) => f64::from_bits(bits).into(),
        (FieldType::Float, Field::Fixed32(bits)) => f32::from_bits(bits).into(),
        (FieldType::String, Field::Bytes(bytes)) => wire::text(bytes)?.into(),
        (FieldType::Bytes, Field::Bytes(bytes)) => BASE64.encode(bytes).into(),
        (FieldType::Strings, Field::Bytes(bytes)) => strings(bytes)?,
        (FieldType::Time, Field::Bytes(bytes)) => time(bytes)?,
        (FieldType::Quantity, Field::Bytes(bytes)) => quantity(bytes)?,
        (FieldType::IntOrString, Field::Bytes(bytes)) => int_or_string(bytes)?,
        (FieldType::Raw, Field::Bytes(bytes)) => raw(bytes)?,
        (FieldType::Message(message), Field::Bytes(bytes)) => {
            let mut members = Map::new();
            read_message(message, bytes, &mut members, depth + 1)?;
            members.into()
        }
        _ => return Err(DecodeError::WireType(number)),
    })
}

fn strings(bytes: &[u8]) -> Result<Value, DecodeError> {
    let mut list = Vec::new();
    for field in fields(bytes) {
        if let (1, Field::Bytes(text)) = field? {
            list.push(wire::text(text)?.into());
        }
    }
    Ok(Value::Array(list))
}

/// Reads a time as seconds and nanoseconds. An empty message is null.
fn time(bytes: &[u8]) -> Result<Value, DecodeError> {
    let (mut seconds, mut nanos, mut given) = (0, 0, false);
    for field in fields(bytes) {
        match field? {
            (1, Field::Varint(value)) => (seconds, given) = (value.cast_signed(), true),
            (2, Field::Varint(value)) => (nanos, given) = (value.cast_signed() as i32, true),
            _ => {}
        }
    }
    if !given {
        return Ok(Value::Null);
    }
    let time = Timestamp::new(seconds, nanos).map_err(|_| DecodeError::Time)?;
    Ok(time.to_string().into())
}

fn quantity(bytes: &[u8]) -> Result<Value, DecodeError> {
    for field in fields(bytes) {
        if let (1, Field::Bytes(text)) = field? {
            return Ok(wire::text(text)?.into());
        }
    }
    Ok("0".into())
}

fn int_or_string(bytes: &[u8]) -> Result<Value, DecodeError> {
    let (mut is_text, mut number, mut string) = (false, 0, String::new());
    for field in fields(bytes) {
        match field? {
            (1, Field::Varint(kind)) => is_text = kind == 1,
            (2, Field::Varint(value)) => number = value.cast_signed(),
            (3, Field::Bytes(text)) => string = wire::text(text)?,
            _ => {}
        }
    }
    Ok(if is_text { string.into() } else { number.into() })
}

fn raw(bytes: &[u8]) -> Result<Value, DecodeError> {
    for field in fields(bytes) {
        if let (1, Field::Bytes(json)) = field? {
            return Ok(serde_json::from_slice(json).unwrap_or(Value::Null));
        }
    }
    Ok(Value::Null)
}
