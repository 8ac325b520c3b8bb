//! Compiles OpenAPI v3 JSON to a [`Schema`] and reports every error, not only the first.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Checks, ListType, Schema, Type, patterns};
use crate::{
    cel::Rule,
    documents::openapi::builtin as definitions,
    status::{FieldError, Path},
};

/// Maximum nesting depth of a schema: deeper ones could exhaust the stack.
const MAX_DEPTH: usize = 96;

pub(super) fn root(raw: &Value, path: &Path<'_>) -> Result<Schema, Vec<FieldError>> {
    let mut errors = Vec::new();
    let mut schema = node(raw, path, 0, &mut errors);
    if schema.kind != Type::Object {
        errors.push(FieldError::invalid(path.child("type"), &raw["type"], "must be object at the root"));
    }
    if errors.is_empty() {
        compile_rules(&mut schema, raw, path, &mut errors);
    }
    if errors.is_empty() { Ok(schema) } else { Err(errors) }
}

/// Compiles the schema of a built-in kind. Definitions refer to each other by name; at a recursive reference the schema
/// accepts any value.
pub(super) fn builtin(name: &str) -> Option<Schema> {
    let mut trail = vec![name.to_owned()];
    Some(reference(&definitions::schema(name)?, &mut trail))
}

fn reference(raw: &Value, trail: &mut Vec<String>) -> Schema {
    let inner = raw["allOf"].get(0).unwrap_or(raw);
    if let Some(target) = inner["$ref"].as_str().and_then(|r| r.rsplit('/').next()) {
        if trail.iter().any(|seen| seen == target) {
            return Schema { preserve_unknown: true, nullable: true, ..Schema::default() };
        }
        trail.push(target.to_owned());
        let mut schema = reference(&definitions::schema(target).unwrap_or_default(), trail);
        trail.pop();
        patch_hints(&mut schema, raw);
        set_zero_value(&mut schema, raw);
        return schema;
    }
    let either = raw.get("oneOf").is_some() || (raw.get("type").is_none() && raw.get("properties").is_none());
    let mut unused = Vec::new();
    let mut schema = Schema {
        kind: if either { Type::Any } else { kind(raw, &Path::Root, &mut unused) },
        // Quantities, int-or-string and raw extensions accept any value.
        preserve_unknown: either || raw.get("properties").is_none(),
        atomic_map: raw["x-kubernetes-map-type"] == "atomic",
        list_type: list_type(raw, &Path::Root, &mut unused),
        required: strings(&raw["required"]),
        nullable: true,
        ..Schema::default()
    };
    patch_hints(&mut schema, raw);
    set_zero_value(&mut schema, raw);
    for (name, child) in raw["properties"].as_object().into_iter().flatten() {
        schema.properties.insert(name.clone(), Box::new(reference(child, trail)));
    }
    for name in &schema.required {
        // The zero value of a required list is null.
        if let Some(list) = schema.properties.get_mut(name).filter(|child| child.kind == Type::Array) {
            list.has_zero_value = true;
        }
    }
    // List items and map values exist only if they are written, so they have no zero value.
    let mut open = |key: &str| {
        let child = reference(raw.get(key)?, trail);
        Some(Box::new(Schema { has_zero_value: false, ..child }))
    };
    schema.items = open("items");
    schema.additional = open("additionalProperties");
    schema
}

/// Marks fields that always exist in Kubernetes' Go types: those whose default is the zero value of their type.
fn set_zero_value(schema: &mut Schema, raw: &Value) {
    schema.default = raw.get("default").cloned();
    schema.has_zero_value = match &schema.default {
        Some(Value::Object(members)) => members.is_empty(),
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_f64() == Some(0.0),
        Some(Value::Bool(set)) => !set,
        _ => false,
    };
}

fn patch_hints(schema: &mut Schema, raw: &Value) {
    if let Some(key) = raw["x-kubernetes-patch-merge-key"].as_str() {
        schema.merge_key = Some(key.to_owned());
    }
    if let Some(strategy) = raw["x-kubernetes-patch-strategy"].as_str() {
        strategy.clone_into(&mut schema.patch_strategy);
    }
}

fn node(raw: &Value, path: &Path<'_>, depth: usize, errors: &mut Vec<FieldError>) -> Schema {
    if depth > MAX_DEPTH {
        errors.push(FieldError::forbidden(path, format!("schemas may be nested at most {MAX_DEPTH} levels deep")));
        return Schema::default();
    }
    let flag = |key: &str| raw[key] == true;
    let mut schema = Schema {
        kind: kind(raw, path, errors),
        default: raw.get("default").cloned(),
        nullable: flag("nullable"),
        int_or_string: flag("x-kubernetes-int-or-string"),
        preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
        embedded_resource: flag("x-kubernetes-embedded-resource"),
        atomic_map: raw["x-kubernetes-map-type"] == "atomic",
        list_type: list_type(raw, path, errors),
        required: strings(&raw["required"]),
        checks: checks(raw, path, depth, errors).boxed(),
        ..Schema::default()
    };
    children(&mut schema, raw, path, depth, errors);
    schema.defaults_below = schema.default.is_some()
        || schema.properties.values().any(|c| c.defaults_below)
        || schema.items.as_ref().is_some_and(|c| c.defaults_below)
        || schema.additional.as_ref().is_some_and(|c| c.defaults_below);
    schema
}

fn children(schema: &mut Schema, raw: &Value, path: &Path<'_>, depth: usize, errors: &mut Vec<FieldError>) {
    let properties = path.child("properties");
    let mut members = BTreeMap::new();
    for (name, child) in raw["properties"].as_object().into_iter().flatten() {
        members.insert(name.clone(), Box::new(node(child, &properties.key(name), depth + 1, errors)));
    }
    schema.properties = members;
    match raw.get("additionalProperties") {
        Some(Value::Bool(true)) => {
            schema.additional = Some(Box::new(Schema { preserve_unknown: true, nullable: true, ..Schema::default() }));
        }
        Some(child @ Value::Object(_)) => {
            let path = path.child("additionalProperties");
            schema.additional = Some(Box::new(node(child, &path, depth + 1, errors)));
        }
        _ => {}
    }
    match raw.get("items") {
        Some(child @ Value::Object(_)) => {
            let path = path.child("items");
            schema.items = Some(Box::new(node(child, &path, depth + 1, errors)));
        }
        Some(Value::Array(_)) => {
            errors.push(FieldError::forbidden(path.child("items"), "items must be a schema object and not an array"));
        }
        _ if schema.kind == Type::Array => {
            errors.push(FieldError::required(path.child("items"), "must be specified"));
        }
        _ => {}
    }
}

fn kind(raw: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> Type {
    match raw["type"].as_str() {
        Some("object") => Type::Object,
        Some("array") => Type::Array,
        Some("string") => Type::String,
        Some("integer") => Type::Integer,
        Some("number") => Type::Number,
        Some("boolean") => Type::Boolean,
        Some(_) => {
            errors.push(FieldError::not_supported(
                path.child("type"),
                &raw["type"],
                &["array", "boolean", "integer", "number", "object", "string"],
            ));
            Type::Any
        }
        None => {
            let open = raw["x-kubernetes-int-or-string"] == true || raw["x-kubernetes-preserve-unknown-fields"] == true;
            if !open {
                errors.push(FieldError::required(path.child("type"), "must not be empty for specified object fields"));
            }
            Type::Any
        }
    }
}

fn list_type(raw: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> ListType {
    let field = path.child("x-kubernetes-list-type");
    match raw["x-kubernetes-list-type"].as_str() {
        None | Some("atomic") => ListType::Atomic,
        Some("set") => ListType::Set,
        Some("map") => {
            let keys = strings(&raw["x-kubernetes-list-map-keys"]);
            if keys.is_empty() {
                errors.push(FieldError::required(
                    path.child("x-kubernetes-list-map-keys"),
                    "must not be empty if x-kubernetes-list-type is map",
                ));
            }
            for key in keys.iter().filter(|k| raw["items"]["properties"].get(k.as_str()).is_none()) {
                errors.push(FieldError::invalid(
                    path.child("x-kubernetes-list-map-keys"),
                    &Value::from(key.as_str()),
                    "entries must all be names of item properties",
                ));
            }
            ListType::Map(keys)
        }
        Some(_) => {
            errors.push(FieldError::not_supported(field, &raw["x-kubernetes-list-type"], &["atomic", "map", "set"]));
            ListType::Atomic
        }
    }
}

fn checks(raw: &Value, path: &Path<'_>, depth: usize, errors: &mut Vec<FieldError>) -> Checks {
    let size = |key: &str| raw[key].as_u64().map(|n| n as usize);
    let bound = |key: &str, exclusive: &str| raw[key].as_f64().map(|n| (n, raw[exclusive] == true));
    let pattern = raw["pattern"].as_str().and_then(|text| match patterns::compile(text) {
        Ok(regex) => Some(regex),
        Err(e) => {
            let why = format!("must be a valid regular expression, but isn't: {e}");
            errors.push(FieldError::invalid_str(path.child("pattern"), text, why));
            None
        }
    });
    let mut branches = |key: &'static str| -> Vec<Schema> {
        let path = path.child(key);
        raw[key]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .map(|(i, b)| branch(b, &path.index(i), depth, errors))
            .collect()
    };
    let all_of = branches("allOf");
    let any_of = branches("anyOf");
    let one_of = branches("oneOf");
    let not = raw.get("not").map(|b| Box::new(branch(b, &path.child("not"), depth, errors)));
    Checks {
        enum_values: raw["enum"].as_array().cloned(),
        minimum: bound("minimum", "exclusiveMinimum"),
        maximum: bound("maximum", "exclusiveMaximum"),
        multiple_of: raw["multipleOf"].as_f64(),
        min_length: size("minLength"),
        max_length: size("maxLength"),
        pattern,
        format: raw["format"].as_str().map(str::to_owned),
        min_items: size("minItems"),
        max_items: size("maxItems"),
        unique_items: raw["uniqueItems"] == true,
        min_properties: size("minProperties"),
        max_properties: size("maxProperties"),
        all_of,
        any_of,
        one_of,
        not,
    }
}

/// A branch of `allOf`, `anyOf`, `oneOf` or `not`: it only adds checks, so it needs no `type` or `items`.
fn branch(raw: &Value, path: &Path<'_>, depth: usize, errors: &mut Vec<FieldError>) -> Schema {
    let mut own = Vec::new();
    let schema = node(raw, path, depth + 1, &mut own);
    errors.extend(
        own.into_iter().filter(|e| !(e.field.ends_with(".items") || e.field.ends_with(".type") && e.shown.is_none())),
    );
    schema
}

fn compile_rules(schema: &mut Schema, raw: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let properties = path.child("properties");
    for (name, child) in &mut schema.properties {
        compile_rules(child, &raw["properties"][name.as_str()], &properties.key(name), errors);
    }
    if let Some(items) = &mut schema.items {
        compile_rules(items, &raw["items"], &path.child("items"), errors);
    }
    if let Some(additional) = &mut schema.additional {
        compile_rules(additional, &raw["additionalProperties"], &path.child("additionalProperties"), errors);
    }
    let field = path.child("x-kubernetes-validations");
    let mut rules = Vec::new();
    for (i, rule) in raw["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate() {
        match Rule::compile(rule, schema, &field.index(i)) {
            Ok(rule) => rules.push(rule),
            Err(error) => errors.push(error),
        }
    }
    schema.rules_below = !rules.is_empty()
        || schema.properties.values().any(|c| c.rules_below)
        || schema.items.as_ref().is_some_and(|c| c.rules_below)
        || schema.additional.as_ref().is_some_and(|c| c.rules_below);
    schema.rules = rules;
}

fn strings(raw: &Value) -> Vec<String> {
    raw.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}
