//! The JSONPath of printer columns: members, indexes, wildcards and simple filters.

use serde_json::Value;

/// Why a path does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("JSONPath {path:?}: {why}")]
pub struct PathError {
    path: String,
    why: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Member(String),
    /// Negative counts from the end.
    Index(i64),
    All,
    Filter(Filter),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    path: Vec<Step>,
    /// `None` if the path only has to exist.
    test: Option<(Comparison, Value)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

const COMPARISONS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

impl JsonPath {
    pub fn parse(path: &str) -> Result<Self, PathError> {
        let inner = path.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(path);
        let inner = inner.strip_prefix('$').unwrap_or(inner);
        match parse_steps(inner) {
            Ok(steps) => Ok(Self { steps }),
            Err(why) => Err(PathError { path: path.to_owned(), why }),
        }
    }

    /// All values that the path selects, in document order.
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        walk(&self.steps, root)
    }
}

fn walk<'a>(steps: &[Step], root: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![root];
    for step in steps {
        found = found.into_iter().flat_map(|value| take(step, value)).collect();
    }
    found
}

fn take<'a>(step: &Step, value: &'a Value) -> Vec<&'a Value> {
    let items = || value.as_array().map(Vec::as_slice).unwrap_or_default();
    match step {
        Step::Member(name) => value.get(name.as_str()).into_iter().collect(),
        Step::Index(index) => {
            let length = items().len() as i64;
            let at = if *index < 0 { length + index } else { *index };
            usize::try_from(at).ok().and_then(|at| items().get(at)).into_iter().collect()
        }
        Step::All => match value {
            Value::Object(members) => members.values().collect(),
            _ => items().iter().collect(),
        },
        Step::Filter(filter) => items().iter().filter(|item| filter.holds(item)).collect(),
    }
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let found = walk(&self.path, item);
        match &self.test {
            None => !found.is_empty(),
            Some((comparison, wanted)) => found.first().is_some_and(|value| compare(*comparison, value, wanted)),
        }
    }
}

fn compare(comparison: Comparison, left: &Value, right: &Value) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64().partial_cmp(&right.as_f64()),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (left, right) => (left == right).then_some(Equal),
    };
    match comparison {
        Comparison::Equal => order == Some(Equal),
        Comparison::NotEqual => order != Some(Equal),
        Comparison::Less => order == Some(Less),
        Comparison::LessOrEqual => matches!(order, Some(Less | Equal)),
        Comparison::Greater => order == Some(Greater),
        Comparison::GreaterOrEqual => matches!(order, Some(Greater | Equal)),
    }
}

fn parse_steps(mut text: &str) -> Result<Vec<Step>, &'static str> {
    let mut steps = Vec::new();
    while let Some(first) = text.chars().next() {
        match first {
            '.' => {
                text = &text[1..];
                if text.starts_with('.') {
                    return Err("recursive descent is not supported");
                }
                if !text.is_empty() && !text.starts_with('[') {
                    let (name, rest) = member(text);
                    if name.is_empty() {
                        return Err("a member name is missing");
                    }
                    steps.push(if name == "*" { Step::All } else { Step::Member(name) });
                    text = rest;
                }
            }
            '[' => {
                let end = closing(text).ok_or("a bracket is not closed")?;
                steps.push(bracket(text[1..end].trim())?);
                text = &text[end + 1..];
            }
            _ if steps.is_empty() => {
                let (name, rest) = member(text);
                steps.push(Step::Member(name));
                text = rest;
            }
            _ => return Err("a dot or bracket is missing"),
        }
    }
    Ok(steps)
}

/// A member name up to the next dot or bracket. A backslash escapes the next character.
fn member(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            '.' | '[' => return (name, &text[at..]),
            other => name.push(other),
        }
    }
    (name, "")
}

/// Position of the bracket that closes the first one, outside of quotes.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, None);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Result<Step, &'static str> {
    if inner == "*" {
        return Ok(Step::All);
    }
    if let Some(name) = quoted(inner) {
        return Ok(Step::Member(name.to_owned()));
    }
    if let Some(condition) = inner.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return filter(condition.trim()).map(Step::Filter);
    }
    inner.parse().map(Step::Index).map_err(|_| "a bracket holds neither an index, a name, * nor a filter")
}

fn quoted(text: &str) -> Option<&str> {
    let strip = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    if text.len() < 2 { None } else { strip('\'').or_else(|| strip('"')) }
}

fn filter(condition: &str) -> Result<Filter, &'static str> {
    let (path, test) = match split_comparison(condition) {
        Some((left, comparison, right)) => (left.trim(), Some((comparison, literal(right.trim())?))),
        None => (condition, None),
    };
    let path = path.strip_prefix('@').ok_or("a filter must start with @")?;
    Ok(Filter { path: parse_steps(path)?, test })
}

fn split_comparison(condition: &str) -> Option<(&str, Comparison, &str)> {
    let mut quote = None;
    for (at, character) in condition.char_indices() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, _) => {
                if let Some((sign, comparison)) = COMPARISONS.iter().find(|(sign, _)| condition[at..].starts_with(sign))
                {
                    return Some((&condition[..at], *comparison, &condition[at + sign.len()..]));
                }
            }
        }
    }
    None
}

fn literal(text: &str) -> Result<Value, &'static str> {
    match quoted(text) {
        Some(inner) => Ok(inner.into()),
        None => serde_json::from_str(text).map_err(|_| "a filter compares with neither a text nor a number"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn found(path: &str) -> Vec<Value> {
        let object = json!({
            "spec": {"replicas": 3, "list": [1, 2, 3], "a.b": "dotted"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False", "n": 7}]},
        });
        JsonPath::parse(path).unwrap().find(&object).into_iter().cloned().collect()
    }

    #[test]
    fn paths_of_real_columns_work() {
        assert_eq!(found(".spec.replicas"), [json!(3)]);
        assert_eq!(found("{.spec.replicas}"), [json!(3)]);
        assert_eq!(found("$.spec.list[-1]"), [json!(3)]);
        assert_eq!(found(".spec.list[*]"), [json!(1), json!(2), json!(3)]);
        assert_eq!(found(r".spec.a\.b"), [json!("dotted")]);
        assert_eq!(found(".spec['a.b']"), [json!("dotted")]);
        assert_eq!(found(r#".status.conditions[?(@.type=="Ready")].status"#), [json!("True")]);
        assert_eq!(found(".status.conditions[?(@.type != 'Ready')].status"), [json!("False")]);
        assert_eq!(found(".status.conditions[?(@.n > 6)].type"), [json!("Other")]);
        assert_eq!(found(".status.conditions[?(@.n)].type"), [json!("Other")]);
        assert!(found(".status.missing[0].x").is_empty());
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(path in "[\\[\\]().?@='\"$*a-z0-9 <>\\\\é-]{0,40}") {
            if let Ok(parsed) = JsonPath::parse(&path) {
                parsed.find(&json!({"a": [{"b": 1}]}));
            }
        }
    }
}
