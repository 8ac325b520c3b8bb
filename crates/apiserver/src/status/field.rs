//! Field errors with Kubernetes' messages, and field paths.

use std::fmt;

use serde_json::Value;

/// The type of a field error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldErrorKind {
    Required,
    Invalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    TypeInvalid,
    NotFound,
    Internal,
}

impl FieldErrorKind {
    /// The `reason` of a Status cause.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }
}

/// One invalid field. Prints as `spec.replicas: Invalid value: -1: must be greater than or equal to 0`.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub kind: FieldErrorKind,
    pub field: String,
    /// The invalid value as printed; `None` if this type of error prints none.
    pub shown: Option<String>,
    pub detail: String,
}

impl FieldError {
    pub fn required(field: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { kind: FieldErrorKind::Required, field: field.to_string(), shown: None, detail: detail.into() }
    }

    pub fn invalid(field: impl fmt::Display, value: &Value, detail: impl Into<String>) -> Self {
        Self {
            kind: FieldErrorKind::Invalid,
            field: field.to_string(),
            shown: Some(show(value)),
            detail: detail.into(),
        }
    }

    pub fn invalid_str(field: impl fmt::Display, value: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: FieldErrorKind::Invalid,
            field: field.to_string(),
            shown: Some(format!("{value:?}")),
            detail: detail.into(),
        }
    }

    /// Like [`invalid`](Self::invalid), with the value already in its printed form.
    pub fn shown(field: impl fmt::Display, shown: String, detail: impl Into<String>) -> Self {
        Self { kind: FieldErrorKind::Invalid, field: field.to_string(), shown: Some(shown), detail: detail.into() }
    }

    pub fn not_supported(field: impl fmt::Display, value: &Value, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let detail = if list.is_empty() { String::new() } else { format!("supported values: {}", list.join(", ")) };
        Self { kind: FieldErrorKind::NotSupported, field: field.to_string(), shown: Some(show(value)), detail }
    }

    pub fn duplicate(field: impl fmt::Display, value: &Value) -> Self {
        Self {
            kind: FieldErrorKind::Duplicate,
            field: field.to_string(),
            shown: Some(show(value)),
            detail: String::new(),
        }
    }

    pub fn forbidden(field: impl fmt::Display, detail: impl Into<String>) -> Self {
        Self { kind: FieldErrorKind::Forbidden, field: field.to_string(), shown: None, detail: detail.into() }
    }

    pub fn not_found(field: impl fmt::Display, value: &Value) -> Self {
        Self {
            kind: FieldErrorKind::NotFound,
            field: field.to_string(),
            shown: Some(show(value)),
            detail: String::new(),
        }
    }

    pub fn too_long(field: impl fmt::Display, max: usize) -> Self {
        Self {
            kind: FieldErrorKind::TooLong,
            field: field.to_string(),
            shown: None,
            detail: format!("may not be more than {max} bytes"),
        }
    }

    pub fn too_many(field: impl fmt::Display, actual: usize, max: usize) -> Self {
        Self {
            kind: FieldErrorKind::TooMany,
            field: field.to_string(),
            shown: Some(actual.to_string()),
            detail: format!("must have at most {max} item{}", if max == 1 { "" } else { "s" }),
        }
    }

    pub fn wrong_type(field: impl fmt::Display, value: &Value, wanted: &str) -> Self {
        let got = type_name(value);
        let path = field.to_string();
        Self {
            kind: FieldErrorKind::TypeInvalid,
            shown: Some(format!("{got:?}")),
            detail: format!("{path} in body must be of type {wanted}: {got:?}"),
            field: path,
        }
    }

    /// The text after the field's path, which is the message of a cause.
    pub fn body(&self) -> String {
        let mut out = self.kind.title().to_owned();
        if let Some(shown) = &self.shown {
            out.push_str(": ");
            out.push_str(shown);
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() { f.write_str(&self.body()) } else { write!(f, "{}: {}", self.field, self.body()) }
    }
}

/// JSON's name for the type of a value, as OpenAPI validation prints it.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

/// A field path that is built during traversal without allocation, and printed only for errors.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    Root,
    Name(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
    Key(&'a Path<'a>, &'a str),
}

impl<'a> Path<'a> {
    pub fn child(&'a self, name: &'a str) -> Path<'a> {
        Path::Name(self, name)
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    /// A map key: `metadata.labels[app]`.
    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path::Key(self, key)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Name(Path::Root, name) => f.write_str(name),
            Path::Name(parent, name) => write!(f, "{parent}.{name}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
            Path::Key(parent, key) => write!(f, "{parent}[{key}]"),
        }
    }
}
