//! Structural schemas of custom resources: parsed once from a CRD, then used to prune, default and validate every
//! object of that version.

use std::{
    collections::BTreeMap,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use regex::Regex;
use serde_json::Value;

use crate::{
    cel::Rule,
    status::{FieldError, Path},
};

mod compile;
mod defaults;
mod formats;
mod patterns;
mod prune;
mod validate;

/// JSON types that a schema can require.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Type {
    /// No type given: every value is allowed.
    #[default]
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// How the items of a list are identified, for merging and for uniqueness.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// One node of a schema.
#[derive(Default)]
pub struct Schema {
    /// Unique number of a compiled schema, set at its root; zero in nodes below.
    pub(crate) id: u64,
    pub kind: Type,
    /// Boxed to save memory: a `BTreeMap` node reserves room for eleven values even if it holds one.
    pub properties: BTreeMap<String, Box<Schema>>,
    /// Schema of the values of a map. `Some` with a default schema allows any value.
    pub additional: Option<Box<Schema>>,
    pub items: Option<Box<Schema>>,
    pub default: Option<Value>,
    /// For fields of built-in kinds: the field exists even where it is not written, with its default or null as value.
    has_zero_value: bool,
    pub list_type: ListType,
    pub atomic_map: bool,
    pub nullable: bool,
    pub int_or_string: bool,
    pub preserve_unknown: bool,
    pub embedded_resource: bool,
    /// For lists of built-in kinds: merge key and strategy of a strategic merge patch.
    pub merge_key: Option<String>,
    pub patch_strategy: String,
    required: Vec<String>,
    /// Boxed and optional, because most nodes have none.
    checks: Option<Box<Checks>>,
    rules: Vec<Rule>,
    /// True if a node at or below this one has a rule (or a default, respectively). Subtrees without are skipped.
    rules_below: bool,
    defaults_below: bool,
}

/// Constraints on single values, and combinators (`allOf`, `anyOf`, `oneOf`, `not`).
#[derive(Default)]
struct Checks {
    enum_values: Option<Vec<Value>>,
    minimum: Option<(f64, bool)>,
    maximum: Option<(f64, bool)>,
    multiple_of: Option<f64>,
    min_length: Option<usize>,
    max_length: Option<usize>,
    pattern: Option<Regex>,
    format: Option<String>,
    min_items: Option<usize>,
    max_items: Option<usize>,
    unique_items: bool,
    min_properties: Option<usize>,
    max_properties: Option<usize>,
    all_of: Vec<Schema>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Box<Schema>>,
}

impl Checks {
    /// `None` if there is nothing to check.
    fn boxed(self) -> Option<Box<Self>> {
        let numbers = self.minimum.is_some() || self.maximum.is_some() || self.multiple_of.is_some();
        let texts = self.min_length.is_some()
            || self.max_length.is_some()
            || self.pattern.is_some()
            || self.format.is_some()
            || self.enum_values.is_some();
        let sizes = self.min_items.is_some()
            || self.max_items.is_some()
            || self.unique_items
            || self.min_properties.is_some()
            || self.max_properties.is_some();
        let branches = self.all_of.len() + self.any_of.len() + self.one_of.len() > 0 || self.not.is_some();
        (numbers || texts || sizes || branches).then(|| Box::new(self))
    }
}

impl Schema {
    /// Parses and checks a schema. CEL rules are compiled here, so a CRD with a rule that does not compile is refused.
    pub fn compile(raw: &Value, path: &Path<'_>) -> Result<Self, Vec<FieldError>> {
        compile::root(raw, path).map(Self::with_id)
    }

    /// The schema of a built-in kind, from Kubernetes' OpenAPI definitions: structure only, no rules.
    pub(crate) fn of_builtin(name: &str) -> Option<Self> {
        compile::builtin(name).map(Self::with_id)
    }

    fn with_id(mut self) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        self.id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self
    }

    /// The schema of a member: the declared property, or that of map values.
    pub fn member(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or(self.additional.as_ref()).map(Box::as_ref)
    }

    /// The value that a field of a built-in kind has where it is not written, if it always exists.
    pub(crate) fn zero_value(&self) -> Option<&Value> {
        self.has_zero_value.then(|| self.default.as_ref().unwrap_or(&Value::Null))
    }

    /// Removes fields that the schema does not declare from a whole object, and returns their paths (`spec.colour`).
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::object(self, object)
    }

    /// Fills in defaults, top down.
    pub fn apply_defaults(&self, object: &mut Value) {
        defaults::apply(self, object);
    }

    /// Structural errors of an object, without evaluating its CEL rules.
    pub fn validate_shape(&self, object: &Value) -> Vec<FieldError> {
        validate::object(self, object)
    }

    /// All errors of an object. `old` is the stored object, for transition rules.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = self.validate_changed(object, old);
        self.validate_rules(object, old, &mut errors);
        errors
    }

    /// Structural errors of the members that differ from `old`.
    pub(crate) fn validate_changed(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        validate::changed(self, object, old)
    }

    /// Adds an error for each CEL rule that the object violates. As in Kubernetes, rules are not evaluated for objects
    /// with missing fields or values of the wrong type; an error states that.
    pub(crate) fn validate_rules(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        use crate::status::FieldErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
        if !self.rules_below {
            return;
        }
        if errors.iter().any(|e| matches!(e.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid)) {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.push(FieldError::invalid("<nil>", &Value::Null, why));
            return;
        }
        crate::cel::check(self, object, old, errors);
    }

    fn checks(&self) -> &Checks {
        static NONE: LazyLock<Checks> = LazyLock::new(Checks::default);
        self.checks.as_deref().unwrap_or(&NONE)
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(crate) fn has_rules(&self) -> bool {
        self.rules_below
    }

    pub(crate) fn format(&self) -> Option<&str> {
        self.checks().format.as_deref()
    }

    pub(crate) fn max_items(&self) -> Option<usize> {
        self.checks().max_items.or(self.checks().max_properties)
    }
}

#[cfg(test)]
mod tests;
