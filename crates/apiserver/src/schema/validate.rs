//! Validation against a schema, with Kubernetes' messages.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{Checks, ListType, Schema, Type, formats};
use crate::status::{FieldError, FieldErrorKind, Path};

pub(super) fn object(schema: &Schema, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(members) = object.as_object() else {
        errors.push(FieldError::wrong_type("", object, "object"));
        return errors;
    };
    resource(schema, members, &Path::Root, &mut errors);
    errors
}

/// Validates the members that differ from `old`; unchanged ones were validated when they were stored.
pub(super) fn changed(schema: &Schema, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let (Some(members), Some(old)) = (object.as_object(), old) else { return self::object(schema, object) };
    let mut errors = Vec::new();
    required(schema, members, &Path::Root, &mut errors);
    for (name, value) in members {
        if matches!(name.as_str(), "apiVersion" | "kind" | "metadata") || old.get(name) == Some(value) {
            continue;
        }
        if let Some(child) = schema.member(name) {
            node(child, value, &Path::Root.child(name), &mut errors);
        }
    }
    combinations(schema, members, &Path::Root, &mut errors);
    errors
}

/// Validates the members of a resource, except its type and metadata, which are checked elsewhere.
fn resource(schema: &Schema, members: &Map<String, Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    required(schema, members, path, errors);
    for (name, value) in members.iter().filter(|(k, _)| !matches!(k.as_str(), "apiVersion" | "kind" | "metadata")) {
        if let Some(child) = schema.member(name) {
            node(child, value, &path.child(name), errors);
        }
    }
    combinations(schema, members, path, errors);
}

fn node(schema: &Schema, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if value.is_null() {
        if !schema.nullable && (schema.kind != Type::Any || schema.int_or_string) {
            errors.push(FieldError::wrong_type(path, value, schema.kind.name()));
        }
        return;
    }
    if !has_type(schema, value) {
        let wanted = if schema.int_or_string { "integer,string" } else { schema.kind.name() };
        errors.push(FieldError::wrong_type(path, value, wanted));
        return;
    }
    scalar(schema.checks(), value, path, errors);
    match value {
        Value::Object(members) => {
            sizes_of_map(schema.checks(), members.len(), path, errors);
            if schema.embedded_resource {
                embedded(members, path, errors);
                resource(schema, members, path, errors);
                return;
            }
            required(schema, members, path, errors);
            for (name, member) in members {
                match schema.properties.get(name) {
                    Some(child) => node(child, member, &path.child(name), errors),
                    None => {
                        if let Some(child) = &schema.additional {
                            node(child, member, &path.child(name), errors);
                        }
                    }
                }
            }
        }
        Value::Array(items) => list(schema, items, path, errors),
        _ => {}
    }
    branches(schema, value, path, errors);
}

fn has_type(schema: &Schema, value: &Value) -> bool {
    if schema.int_or_string {
        return value.is_string() || is_integer(value);
    }
    match schema.kind {
        Type::Any => true,
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::String => value.is_string(),
        Type::Integer => is_integer(value),
        Type::Number => value.is_number(),
        Type::Boolean => value.is_boolean(),
    }
}

fn is_integer(value: &Value) -> bool {
    match value {
        Value::Number(n) => !n.is_f64() || n.as_f64().is_some_and(|f| f.fract() == 0.0),
        _ => false,
    }
}

fn required(schema: &Schema, members: &Map<String, Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for name in schema.required.iter().filter(|n| !members.contains_key(n.as_str())) {
        errors.push(FieldError::required(path.child(name), ""));
    }
}

/// An embedded resource must have `apiVersion` and `kind`.
fn embedded(members: &Map<String, Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in ["apiVersion", "kind"] {
        if members.get(key).and_then(Value::as_str).is_none_or(str::is_empty) {
            errors.push(FieldError::required(path.child(key), "must not be empty"));
        }
    }
}

fn scalar(checks: &Checks, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(allowed) = &checks.enum_values
        && !allowed.contains(value)
    {
        let names: Vec<String> =
            allowed.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        errors.push(FieldError::not_supported(path, value, &names));
    }
    match value {
        Value::String(text) => string(checks, text, path, errors),
        Value::Number(number) => {
            if let Some(number) = number.as_f64() {
                numeric(checks, value, number, path, errors);
            }
        }
        _ => {}
    }
}

fn in_body(value: &Value, path: &Path<'_>, rule: &str) -> FieldError {
    FieldError::invalid(path, value, format!("{path} in body {rule}"))
}

fn string(checks: &Checks, text: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let value = || Value::from(text);
    let length = text.chars().count();
    if let Some(max) = checks.max_length.filter(|m| length > *m) {
        errors.push(FieldError::too_long(path, max));
    }
    if let Some(min) = checks.min_length.filter(|m| length < *m) {
        errors.push(in_body(&value(), path, &format!("should be at least {min} chars long")));
    }
    if let Some(pattern) = checks.pattern.as_ref().filter(|p| !p.is_match(text)) {
        errors.push(in_body(&value(), path, &format!("should match '{}'", pattern.as_str())));
    }
    if let Some(format) = checks.format.as_ref().filter(|f| !formats::is_valid(f, text)) {
        let mut error = in_body(&value(), path, &format!("must be of type {format}: {text:?}"));
        error.kind = FieldErrorKind::TypeInvalid;
        errors.push(error);
    }
}

fn numeric(checks: &Checks, value: &Value, number: f64, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some((min, exclusive)) = checks.minimum
        && (number < min || (exclusive && number <= min))
    {
        let or = if exclusive { "" } else { " or equal to" };
        errors.push(in_body(value, path, &format!("should be greater than{or} {min}")));
    }
    if let Some((max, exclusive)) = checks.maximum
        && (number > max || (exclusive && number >= max))
    {
        let or = if exclusive { "" } else { " or equal to" };
        errors.push(in_body(value, path, &format!("should be less than{or} {max}")));
    }
    if let Some(step) = checks.multiple_of.filter(|s| *s > 0.0 && (number / s).fract() != 0.0) {
        errors.push(in_body(value, path, &format!("should be a multiple of {step}")));
    }
    let range = match checks.format.as_deref() {
        Some("int32") => Some((f64::from(i32::MIN), f64::from(i32::MAX))),
        _ => None,
    };
    if let Some((low, high)) = range.filter(|(low, high)| number < *low || number > *high) {
        errors.push(in_body(value, path, &format!("should be between {low} and {high}")));
    }
}

fn sizes_of_map(checks: &Checks, count: usize, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(max) = checks.max_properties.filter(|m| count > *m) {
        errors.push(FieldError::too_many(path, count, max));
    }
    if let Some(min) = checks.min_properties.filter(|m| count < *m) {
        errors.push(in_body(&count.into(), path, &format!("should have at least {min} properties")));
    }
}

fn list(schema: &Schema, items: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let checks = schema.checks();
    if let Some(max) = checks.max_items.filter(|m| items.len() > *m) {
        errors.push(FieldError::too_many(path, items.len(), max));
    }
    if let Some(min) = checks.min_items.filter(|m| items.len() < *m) {
        errors.push(in_body(&items.len().into(), path, &format!("should have at least {min} items")));
    }
    if let Some(child) = &schema.items {
        for (i, item) in items.iter().enumerate() {
            node(child, item, &path.index(i), errors);
        }
    }
    match &schema.list_type {
        ListType::Map(keys) => {
            let key = |item: &Value| -> Value {
                let named = keys.iter().filter_map(|k| item.get(k).map(|v| (k.clone(), v.clone())));
                Value::Object(named.collect())
            };
            let same = |one: &Value, other: &Value| keys.iter().all(|k| one.get(k) == other.get(k));
            for i in duplicates(items, same, |item| key(item).to_string()) {
                errors.push(FieldError::duplicate(path.index(i), &key(&items[i])));
            }
        }
        ListType::Set => {
            for i in duplicates(items, Value::eq, Value::to_string) {
                errors.push(FieldError::duplicate(path.index(i), &items[i]));
            }
        }
        ListType::Atomic if checks.unique_items => {
            if !duplicates(items, Value::eq, Value::to_string).is_empty() {
                errors.push(in_body(&Value::Array(items.to_vec()), path, "shouldn't contain duplicates"));
            }
        }
        ListType::Atomic => {}
    }
}

/// Maximum length of lists whose items are compared pairwise, without allocating a set.
const MAX_PAIRWISE_LEN: usize = 48;

/// Indexes of items that already occur earlier in the list. `text` must distinguish items exactly as `same` does.
fn duplicates(items: &[Value], same: impl Fn(&Value, &Value) -> bool, text: impl Fn(&Value) -> String) -> Vec<usize> {
    if items.len() <= MAX_PAIRWISE_LEN {
        return (1..items.len()).filter(|i| items[..*i].iter().any(|earlier| same(earlier, &items[*i]))).collect();
    }
    let mut seen = HashSet::new();
    items.iter().enumerate().filter(|(_, item)| !seen.insert(text(item))).map(|(i, _)| i).collect()
}

fn passes(schema: &Schema, value: &Value) -> bool {
    let mut errors = Vec::new();
    node(schema, value, &Path::Root, &mut errors);
    errors.is_empty()
}

fn branches(schema: &Schema, value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let checks = schema.checks();
    for branch in &checks.all_of {
        node(branch, value, path, errors);
    }
    if !checks.any_of.is_empty() && !checks.any_of.iter().any(|b| passes(b, value)) {
        errors.push(in_body(&type_or_value(value), path, "must validate at least one schema (anyOf)"));
    }
    if !checks.one_of.is_empty() {
        let valid = checks.one_of.iter().filter(|b| passes(b, value)).count();
        if valid != 1 {
            let found =
                if valid == 0 { "Found none valid".to_owned() } else { format!("Found {valid} valid alternatives") };
            errors.push(in_body(
                &type_or_value(value),
                path,
                &format!("must validate one and only one schema (oneOf). {found}"),
            ));
        }
    }
    if checks.not.as_ref().is_some_and(|b| passes(b, value)) {
        errors.push(in_body(&type_or_value(value), path, "must not validate the schema (not)"));
    }
}

/// Checks the combinators (`allOf` etc.) of a resource, given its members.
fn combinations(schema: &Schema, members: &Map<String, Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let checks = schema.checks();
    if checks.all_of.is_empty() && checks.any_of.is_empty() && checks.one_of.is_empty() && checks.not.is_none() {
        return;
    }
    branches(schema, &Value::Object(members.clone()), path, errors);
}

/// The value in an error message: the type name for objects and lists.
fn type_or_value(value: &Value) -> Value {
    match value {
        Value::Object(_) => "object".into(),
        Value::Array(_) => "array".into(),
        other => other.clone(),
    }
}
