//! Image aliases: a table that the operator can change or empty.

use serde::{Deserialize, Serialize};

/// One entry of the table.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ImageAlias {
    /// The last part of an image's name or, with a `/` or `:`, its whole name; `*` matches anything.
    pub pattern: String,
    /// The local image that is used instead.
    pub image: String,
}

impl ImageAlias {
    pub fn new(pattern: impl Into<String>, image: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), image: image.into() }
    }

    fn matches(&self, reference: &str) -> bool {
        let whole = self.pattern.contains(['/', ':']);
        like(&self.pattern, if whole { reference } else { base_name(reference) })
    }
}

/// The image used instead of `reference`; the first matching entry applies.
pub(super) fn resolve<'t>(table: &'t [ImageAlias], reference: &str) -> Option<&'t str> {
    table.iter().find(|alias| alias.matches(reference)).map(|alias| alias.image.as_str())
}

/// The last part of the name, without tag or digest.
fn base_name(reference: &str) -> &str {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    name.split(['@', ':']).next().unwrap_or(name)
}

fn like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_pattern_is_the_last_part_of_the_name() {
        let table = [ImageAlias::new("python-runtime-sandbox", "host")];
        for reference in [
            "python-runtime-sandbox",
            "registry.example/team/python-runtime-sandbox:v1",
            "python-runtime-sandbox@sha256:0",
        ] {
            assert_eq!(resolve(&table, reference), Some("host"), "{reference}");
        }
        for reference in ["python", "my-python-runtime-sandbox", "python-runtime-sandbox/other"] {
            assert_eq!(resolve(&table, reference), None, "{reference}");
        }
    }

    #[test]
    fn stars_match_anything_and_the_first_entry_applies() {
        let table = [
            ImageAlias::new("registry.example/*:v1", "one"),
            ImageAlias::new("py*n*", "two"),
            ImageAlias::new("python", "three"),
        ];
        assert_eq!(resolve(&table, "registry.example/a/python:v1"), Some("one"));
        assert_eq!(resolve(&table, "registry.example/a/python:v2"), Some("two"));
        assert_eq!(resolve(&table, "pn"), None);
        assert_eq!(resolve(&table, "perl"), None);
        assert!(like("*", "") && like("a*a", "aa") && !like("a*a", "a") && like("**x", "yx"));
    }
}
