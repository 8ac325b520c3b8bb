//! Field selectors: `metadata.name=x,status.phase!=Running`. Only fields that the resource declares are selectable.

use crate::{registry::Resource, store::Stored};

#[derive(Debug, Clone, Default)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone)]
struct Term {
    field: Field,
    equal: bool,
    value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
    /// Index into the resource's selectable fields.
    Declared(usize),
}

impl FieldSelector {
    pub fn parse(resource: &Resource, text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        for raw in split_unescaped(text, ',').into_iter().filter(|t| !t.is_empty()) {
            let (name, equal, value) =
                split_term(raw).ok_or_else(|| format!("invalid selector: '{raw}'; can't understand '{text}'"))?;
            let field = resolve(resource, name).ok_or_else(|| unknown(resource, name))?;
            terms.push(Term { field, equal, value: unescape(value)? });
        }
        Ok(Self { terms })
    }

    pub fn matches(&self, object: &Stored) -> bool {
        self.terms.iter().all(|term| {
            let actual: &str = match term.field {
                Field::Name => &object.key.name,
                Field::Namespace => &object.key.namespace,
                Field::Declared(i) => object.facts.fields.get(i).map_or("", |v| v),
            };
            (actual == term.value) == term.equal
        })
    }

    pub fn name(&self) -> Option<&str> {
        self.exact(Field::Name)
    }

    pub fn namespace(&self) -> Option<&str> {
        self.exact(Field::Namespace)
    }

    fn exact(&self, field: Field) -> Option<&str> {
        self.terms.iter().find(|t| t.field == field && t.equal).map(|t| t.value.as_str())
    }
}

/// The error for an unknown field. As in Kubernetes, the text depends on whether the kind has selectable fields of its
/// own.
fn unknown(resource: &Resource, name: &str) -> String {
    if resource.is_custom() || !resource.fields.is_empty() {
        return format!("field label not supported: {name}");
    }
    format!("{name:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
}

fn resolve(resource: &Resource, name: &str) -> Option<Field> {
    match name {
        "metadata.name" => Some(Field::Name),
        "metadata.namespace" => Some(Field::Namespace),
        // Field names of events.k8s.io, mapped to those of the core group in which events are stored.
        _ if resource.is_alias() => {
            let core = match name.strip_prefix("regarding.") {
                Some(rest) => format!("involvedObject.{rest}"),
                None if name == "reportingController" => "reportingComponent".into(),
                None => name.to_owned(),
            };
            resource.fields.iter().position(|f| f.name == core).map(Field::Declared)
        }
        _ => resource.fields.iter().position(|f| f.name == name).map(Field::Declared),
    }
}

fn split_term(raw: &str) -> Option<(&str, bool, &str)> {
    let at = raw.find(['=', '!'])?;
    let (name, rest) = raw.split_at(at);
    let (equal, value) = if let Some(value) = rest.strip_prefix("!=") {
        (false, value)
    } else if let Some(value) = rest.strip_prefix("==") {
        (true, value)
    } else {
        (true, rest.strip_prefix('=')?)
    };
    Some((name.trim(), equal, value))
}

fn split_unescaped(text: &str, separator: char) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == separator {
            out.push(&text[start..i]);
            start = i + c.len_utf8();
        }
    }
    out.push(&text[start..]);
    out
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                _ => return Err(format!("invalid field selector: invalid escape sequence in {value:?}")),
            },
            '=' => return Err(format!("invalid field selector: unescaped '=' in {value:?}")),
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::registry::Registry;

    fn pods() -> std::sync::Arc<Resource> {
        Registry::default().snapshot().resource("", "pods").unwrap().clone()
    }

    #[test]
    fn only_declared_fields_are_selectable() {
        assert!(FieldSelector::parse(&pods(), "metadata.name=a,status.podIP!=").is_ok());
        let error = FieldSelector::parse(&pods(), "spec.colour=red").unwrap_err();
        assert_eq!(error, "field label not supported: spec.colour");
        assert!(FieldSelector::parse(&pods(), "metadata.name").is_err());
    }

    #[test]
    fn escapes_are_read() {
        let got = FieldSelector::parse(&pods(), r"metadata.name=a\,b").unwrap();
        assert_eq!(got.name(), Some("a,b"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,64}") {
            let _ = FieldSelector::parse(&pods(), &text);
        }
    }
}
