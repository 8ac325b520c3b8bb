//! CEL rules of custom resources (`x-kubernetes-validations`): compiled with the CRD, evaluated on every write.

use std::collections::HashMap;

use kube_cel::{
    KubeCelExt as _,
    cel::{Context, ExecutionError, Program, Value as Cel},
};
use serde_json::Value;

use crate::{
    schema::{ListType, Schema},
    status::{FieldError, FieldErrorKind, Path},
};

mod analyse;
mod selection;
mod values;

use selection::Selection;

/// One compiled rule.
pub(crate) struct Rule {
    source: String,
    program: Program,
    message: String,
    message_program: Option<Program>,
    reason: FieldErrorKind,
    field_path: String,
    /// A transition rule: it uses `oldSelf` and is evaluated only on updates.
    transition: bool,
    /// The rule is evaluated on creation too; `oldSelf` is then an optional value.
    optional_old_self: bool,
    /// The parts of `self` and `oldSelf` that the rule reads.
    reads: Selection,
}

impl Rule {
    /// Compiles one entry of `x-kubernetes-validations` against the schema that contains it.
    pub(crate) fn compile(raw: &Value, schema: &Schema, path: &Path<'_>) -> Result<Self, FieldError> {
        let source = raw["rule"].as_str().unwrap_or_default().trim().to_owned();
        let field = path.child("rule");
        if source.is_empty() {
            return Err(FieldError::required(field, ""));
        }
        let program = compile(&source).map_err(|why| invalid_rule(&field, &source, &why))?;
        analyse::check(&program, schema).map_err(|why| invalid_rule(&field, &source, &why))?;
        let mut reads = Selection::default();
        reads.add(program.expression());
        let message_program = match raw["messageExpression"].as_str().filter(|s| !s.trim().is_empty()) {
            None => None,
            Some(text) => {
                let field = path.child("messageExpression");
                let compiled = compile(text)
                    .and_then(|compiled| analyse::check(&compiled, schema).map(|()| compiled))
                    .map_err(|why| invalid_rule(&field, text, &why))?;
                reads.add(compiled.expression());
                Some(compiled)
            }
        };
        let transition = program.references().has_variable("oldSelf");
        Ok(Self {
            message: raw["message"].as_str().unwrap_or_default().trim().to_owned(),
            message_program,
            reason: reason(raw["reason"].as_str()),
            field_path: raw["fieldPath"].as_str().unwrap_or_default().to_owned(),
            optional_old_self: raw["optionalOldSelf"] == true,
            source,
            program,
            transition,
            reads,
        })
    }
}

fn compile(text: &str) -> Result<Program, String> {
    Program::compile(text).map_err(|e| format!("compilation failed: {e}"))
}

fn invalid_rule(field: &Path<'_>, source: &str, why: &str) -> FieldError {
    FieldError::invalid_str(field, source, why)
}

fn reason(name: Option<&str>) -> FieldErrorKind {
    match name {
        Some("FieldValueForbidden") => FieldErrorKind::Forbidden,
        Some("FieldValueRequired") => FieldErrorKind::Required,
        Some("FieldValueDuplicate") => FieldErrorKind::Duplicate,
        _ => FieldErrorKind::Invalid,
    }
}

/// Evaluates every rule of `schema` on `object`.
pub(crate) fn check(schema: &Schema, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    FUNCTIONS.with(|functions| check_node(functions, schema, object, old, &Path::Root, errors));
}

thread_local! {
    /// Kubernetes' CEL functions, registered once per thread, because that takes longer than evaluating most rules.
    static FUNCTIONS: Context<'static> = Context::default().with_all();
}

fn check_node(
    functions: &Context<'_>,
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if !schema.has_rules() || value.is_null() {
        return;
    }
    if !schema.rules().is_empty() {
        evaluate_all(functions, schema, value, old, path, errors);
    }
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let Some(child) = schema.member(name) {
                    check_node(functions, child, member, old.and_then(|o| o.get(name)), &path.child(name), errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(child) = schema.items.as_deref().filter(|c| c.has_rules()) else { return };
            let before = old_items_by_key(&schema.list_type, old);
            for (i, item) in items.iter().enumerate() {
                let old = list_key(&schema.list_type, item).and_then(|k| before.get(&k).copied());
                check_node(functions, child, item, old, &path.index(i), errors);
            }
        }
        _ => {}
    }
}

/// Old items of a list by key. Only items of map lists can be correlated with their old values.
fn old_items_by_key<'a>(list_type: &ListType, old: Option<&'a Value>) -> HashMap<String, &'a Value> {
    let items = old.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| list_key(list_type, item).map(|key| (key, item))).collect()
}

fn list_key(list_type: &ListType, item: &Value) -> Option<String> {
    let ListType::Map(keys) = list_type else { return None };
    Some(keys.iter().map(|k| item[k.as_str()].to_string()).collect::<Vec<_>>().join("\u{0}"))
}

fn evaluate_all(
    functions: &Context<'_>,
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for rule in schema.rules() {
        let before = || old.map(|old| values::to_cel(schema, old, &rule.reads));
        let old_self = match (old, rule.transition, rule.optional_old_self) {
            (Some(_), true, false) => before(),
            (None, true, false) => continue,
            (_, true, true) => Some(values::optional(before())),
            (_, false, _) => None,
        };
        let mut context = functions.new_inner_scope();
        context.add_variable_from_value("self", values::to_cel(schema, value, &rule.reads));
        if let Some(old_self) = old_self {
            context.add_variable_from_value("oldSelf", old_self);
        }
        match rule.program.execute(&context) {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => errors.push(violation(rule, &context, value, path)),
            Ok(_) => errors.push(evaluation_error(rule, schema, path, "the rule did not evaluate to a boolean")),
            Err(error) => errors.push(evaluation_error(rule, schema, path, &cause(&error))),
        }
    }
}

/// As kube-apiserver 1.36: a scalar is shown, an object or a list is not.
fn violation(rule: &Rule, context: &Context<'_>, value: &Value, path: &Path<'_>) -> FieldError {
    let computed = rule.message_program.as_ref().and_then(|program| match program.execute(context) {
        Ok(Cel::String(text)) if !text.trim().is_empty() && !text.contains('\n') => Some(text.trim().to_owned()),
        _ => None,
    });
    let message = computed.unwrap_or_else(|| {
        if rule.message.is_empty() { format!("failed rule: {}", rule.source) } else { rule.message.clone() }
    });
    let field = format!("{path}{}", rule.field_path);
    let field = match field.trim_start_matches('.') {
        "" => "<nil>",
        field => field,
    };
    let shown = match (rule.reason, value) {
        (FieldErrorKind::Forbidden | FieldErrorKind::Required, _) | (_, Value::Object(_) | Value::Array(_)) => None,
        (_, Value::String(text)) => Some(format!("{text:?}")),
        (_, Value::Number(number)) => {
            Some(number.as_f64().filter(|_| number.is_f64()).map_or_else(|| number.to_string(), shown_float))
        }
        (_, other) => Some(other.to_string()),
    };
    let detail = if rule.reason == FieldErrorKind::Duplicate { String::new() } else { message };
    FieldError { kind: rule.reason, field: field.to_owned(), shown, detail }
}

/// A number as Go's `%v` prints it: with an exponent below 0.0001 and from 1e21 on.
fn shown_float(number: f64) -> String {
    let text = format!("{number:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..21).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

fn evaluation_error(rule: &Rule, schema: &Schema, path: &Path<'_>, why: &str) -> FieldError {
    let named = if rule.message.is_empty() { &rule.source } else { &rule.message };
    FieldError::invalid_str(path, schema.kind.name(), format!("{why} evaluating rule: {named}"))
}

/// Why a rule could not be evaluated, in the words of Kubernetes where it has some.
fn cause(error: &ExecutionError) -> String {
    match error {
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::IndexOutOfBounds(Cel::Int(index)) => format!("index out of bounds: {index}"),
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload => "no such overload".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
