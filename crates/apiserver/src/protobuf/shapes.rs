//! From wire fields to JSON members, by the shapes of Kubernetes' messages.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::DecodeError;
use super::wire::{self, Field, fields, varint};

const TEXT: &str = include_str!("../../data/kubernetes-protobuf.json");
/// Deeper than any real object; bounds the stack.
const MAX_DEPTH: usize = 64;

struct Member {
    /// Empty: the members of this message belong to the one around it.
    name: &'static str,
    pointer: bool,
    omit_empty: bool,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
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
    /// JSON carried as bytes.
    Raw,
    Message(&'static str),
    List(Box<Kind>),
    Map(Box<Kind>),
}

type Message = HashMap<u32, Member>;

static SHAPES: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| {
    let raw: HashMap<&'static str, HashMap<&'static str, &'static str>> =
        serde_json::from_str(TEXT).expect("the data file is generated and tested");
    let message = |fields: HashMap<&'static str, &'static str>| -> Message {
        fields.into_iter().map(|(number, field)| (number.parse().expect("a field number"), member(field))).collect()
    };
    raw.into_iter().map(|(name, fields)| (name, message(fields))).collect()
});

fn member(field: &'static str) -> Member {
    let mut parts = field.splitn(3, ':');
    let mut next = || parts.next().expect("three parts in generated data");
    let (name, flags, kind) = (next(), next(), next());
    Member { name, pointer: flags.contains('p'), omit_empty: flags.contains('o'), kind: self::kind(kind) }
}

fn kind(text: &'static str) -> Kind {
    if let Some(item) = text.strip_prefix("[]") {
        return Kind::List(Box::new(kind(item)));
    }
    if let Some(value) = text.strip_prefix("{}") {
        return Kind::Map(Box::new(kind(value)));
    }
    match text {
        "string" => Kind::String,
        "bool" => Kind::Bool,
        "int" => Kind::Int,
        "float" => Kind::Float,
        "bytes" => Kind::Bytes,
        "strings" => Kind::Strings,
        "meta/v1.Time" | "meta/v1.MicroTime" => Kind::Time,
        "api/resource.Quantity" => Kind::Quantity,
        "util/intstr.IntOrString" => Kind::IntOrString,
        "runtime.RawExtension" | "meta/v1.FieldsV1" => Kind::Raw,
        message => Kind::Message(message),
    }
}

/// The message of a kind, if it is built in.
pub(super) fn message_of(api_version: &str, kind: &str) -> Option<&'static str> {
    let package = match api_version {
        // Delete options arrive under the version of whatever is deleted.
        _ if kind == "DeleteOptions" => "meta/v1".to_owned(),
        "v1" => "core/v1".to_owned(),
        versioned => {
            let (group, version) = versioned.split_once('/')?;
            format!("{}/{version}", group.split('.').next()?)
        }
    };
    SHAPES.get_key_value(format!("{package}.{kind}").as_str()).map(|(name, _)| *name)
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
    let Some(shape) = SHAPES.get(message) else { return Ok(()) };
    for field in fields(bytes) {
        let (number, field) = field?;
        // Fields of a newer Kubernetes are left out, as its own decoder would.
        let Some(member) = shape.get(&number) else { continue };
        match (&member.kind, field) {
            (Kind::Message(inner), Field::Bytes(bytes)) if member.name.is_empty() => {
                read_message(inner, bytes, into, depth + 1)?;
            }
            (Kind::List(item), field) => {
                let list = into.entry(member.name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = list {
                    read_items(item, number, field, list, depth)?;
                }
            }
            (Kind::Map(value), Field::Bytes(entry)) => {
                let (key, value) = read_entry(value, entry, depth)?;
                let map = into.entry(member.name).or_insert_with(|| Value::Object(Map::new()));
                map[key] = value;
            }
            (kind, field) => {
                let value = read_value(kind, number, field, depth)?;
                if member.pointer || !(is_zero(kind, &value) && (member.omit_empty || value.is_null())) {
                    into.insert(member.name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

/// What Go would leave out of JSON; empty structs are not left out.
fn is_zero(kind: &Kind, value: &Value) -> bool {
    match (kind, value) {
        (_, Value::Null) => true,
        (Kind::String | Kind::Bytes, Value::String(text)) => text.is_empty(),
        (Kind::Bool, Value::Bool(flag)) => !flag,
        (Kind::Int | Kind::Float, Value::Number(number)) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

/// One item of a list, or several packed numbers.
fn read_items(
    item: &Kind,
    number: u32,
    field: Field<'_>,
    list: &mut Vec<Value>,
    depth: usize,
) -> Result<(), DecodeError> {
    if let (Kind::Int | Kind::Bool, Field::Bytes(mut packed)) = (item, field) {
        while !packed.is_empty() {
            let value = Field::Varint(varint(&mut packed)?);
            list.push(read_value(item, number, value, depth)?);
        }
        return Ok(());
    }
    list.push(read_value(item, number, field, depth)?);
    Ok(())
}

fn read_entry(value: &Kind, entry: &[u8], depth: usize) -> Result<(String, Value), DecodeError> {
    let (mut key, mut found) = (String::new(), None);
    for field in fields(entry) {
        match field? {
            (1, Field::Bytes(text)) => key = wire::text(text)?,
            (2, field) => found = Some(read_value(value, 2, field, depth)?),
            _ => {}
        }
    }
    // A missing value is an empty one.
    let found = match found {
        Some(found) => found,
        None => read_value(value, 2, Field::Bytes(&[]), depth)?,
    };
    Ok((key, found))
}

fn read_value(kind: &Kind, number: u32, field: Field<'_>, depth: usize) -> Result<Value, DecodeError> {
    Ok(match (kind, field) {
        (Kind::Bool, Field::Varint(value)) => (value != 0).into(),
        (Kind::Int, Field::Varint(value)) => value.cast_signed().into(),
        (Kind::Float, Field::Fixed64(bits)) => f64::from_bits(bits).into(),
        (Kind::Float, Field::Fixed32(bits)) => f32::from_bits(bits).into(),
        (Kind::String, Field::Bytes(bytes)) => wire::text(bytes)?.into(),
        (Kind::Bytes, Field::Bytes(bytes)) => BASE64.encode(bytes).into(),
        (Kind::Strings, Field::Bytes(bytes)) => strings(bytes)?,
        (Kind::Time, Field::Bytes(bytes)) => time(bytes)?,
        (Kind::Quantity, Field::Bytes(bytes)) => quantity(bytes)?,
        (Kind::IntOrString, Field::Bytes(bytes)) => int_or_string(bytes)?,
        (Kind::Raw, Field::Bytes(bytes)) => raw(bytes)?,
        (Kind::Message(message), Field::Bytes(bytes)) => {
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

/// Seconds and nanoseconds; nothing at all is no time.
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
