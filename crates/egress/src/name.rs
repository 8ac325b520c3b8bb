//! Domain names in one form: ASCII (IDNA), lower case, without a trailing dot.

use std::fmt;

/// Longest name and longest label, as DNS has them.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A domain name that can be compared byte by byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

/// Why a text is not a domain name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty")]
    Empty,
    #[error("the name has an empty label")]
    EmptyLabel,
    #[error("the name is longer than 253 characters, or a label is longer than 63")]
    TooLong,
    #[error("the name has characters that host names cannot have")]
    Character,
    #[error("this is an IP address, not a name")]
    Address,
}

impl Name {
    /// Reads a name as users, programs and resolvers write it.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        // Underscores occur in names of services; IDNA's strict profile refuses them, so ASCII takes its own way.
        let ascii = match text.is_ascii() {
            true => text.to_ascii_lowercase(),
            false => idna::domain_to_ascii(text).map_err(|_| NameError::Character)?,
        };
        let ascii = ascii.strip_suffix('.').unwrap_or(&ascii);
        if ascii.len() > MAX_NAME {
            return Err(NameError::TooLong);
        }
        let mut last = "";
        for label in ascii.split('.') {
            check_label(label)?;
            last = label;
        }
        // Resolvers and URL parsers read a name whose last label is a number as an IPv4 address (`127.1`, `0x7f.1`).
        let number = |label: &str| {
            label.bytes().all(|byte| byte.is_ascii_digit())
                || label.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        if number(last) {
            return Err(NameError::Address);
        }
        Ok(Self(ascii.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name itself, then each of its parents up to the last label.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(Some(self.0.as_str()), |name| name.split_once('.').map(|(_, parent)| parent))
    }
}

fn check_label(label: &str) -> Result<(), NameError> {
    match label.len() {
        0 => return Err(NameError::EmptyLabel),
        1..=MAX_LABEL => {}
        _ => return Err(NameError::TooLong),
    }
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    let hyphen = label.starts_with('-') || label.ends_with('-');
    if hyphen || !label.bytes().all(allowed) { Err(NameError::Character) } else { Ok(()) }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form() {
        for (text, name) in [
            ("PyPI.org", "pypi.org"),
            ("pypi.org.", "pypi.org"),
            ("Bücher.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("例え。jp", "xn--r8jz45g.jp"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("1and1.com", "1and1.com"),
        ] {
            assert_eq!(Name::parse(text).map(|n| n.0), Ok(name.to_owned()), "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_names_are_refused() {
        let long = format!("{}.com", "a".repeat(64));
        let longer = vec!["a".repeat(60); 5].join(".");
        for (text, error) in [
            ("", NameError::Empty),
            (".", NameError::Empty),
            ("a..b", NameError::EmptyLabel),
            (".a", NameError::EmptyLabel),
            ("a b", NameError::Character),
            ("a/b", NameError::Character),
            ("a\0b", NameError::Character),
            ("-a.com", NameError::Character),
            (long.as_str(), NameError::TooLong),
            (longer.as_str(), NameError::TooLong),
            ("127.0.0.1", NameError::Address),
            ("0x7f.1", NameError::Address),
            ("a.0x7f", NameError::Address),
            ("2130706433", NameError::Address),
            ("[::1]", NameError::Character),
            ("１２７.0.0.1", NameError::Address),
        ] {
            assert_eq!(Name::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn parents_follow_the_name() {
        let name = Name::parse("a.b.c").unwrap();
        assert_eq!(name.ancestors().collect::<Vec<_>>(), ["a.b.c", "b.c", "c"]);
    }
}
