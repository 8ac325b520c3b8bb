//! Parses header values with parameters: `form-data; name="file"; filename="a b.txt"`.

/// Splits a value into its first word and its parameters. A parameter that is not UTF-8 has no value.
pub(super) fn parameters(value: &[u8]) -> (&[u8], Parameters<'_>) {
    let end = memchr::memchr(b';', value).unwrap_or(value.len());
    (value[..end].trim_ascii(), Parameters { rest: &value[end..] })
}

pub(super) struct Parameters<'a> {
    /// Begins with a semicolon, or is empty.
    rest: &'a [u8],
}

impl<'a> Iterator for Parameters<'a> {
    type Item = (&'a [u8], Option<String>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.rest.split_first()?.1;
            let end = memchr::memchr2(b';', b'=', rest).unwrap_or(rest.len());
            let (name, rest) = (rest[..end].trim_ascii(), &rest[end..]);
            let Some(rest) = rest.strip_prefix(b"=") else {
                // A parameter without a value.
                self.rest = rest;
                continue;
            };
            let rest = rest.trim_ascii_start();
            let (value, rest) = match rest.strip_prefix(b"\"") {
                Some(rest) => quoted(rest),
                None => {
                    let end = memchr::memchr(b';', rest).unwrap_or(rest.len());
                    let text = rest[..end].trim_ascii();
                    (String::from_utf8(text.to_vec()).ok(), &rest[end..])
                }
            };
            self.rest = &rest[memchr::memchr(b';', rest).unwrap_or(rest.len())..];
            return Some((name, value));
        }
    }
}

/// The text up to the closing quote, and the rest after it; without a closing quote, no text. A backslash is literal
/// unless a quote follows: browsers send Windows paths unescaped.
fn quoted(text: &[u8]) -> (Option<String>, &[u8]) {
    let mut value = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        match (byte, after) {
            (b'"', _) => return (String::from_utf8(value).ok(), after),
            (b'\\', [b'"', after @ ..]) => {
                value.push(b'"');
                rest = after;
            }
            _ => {
                value.push(byte);
                rest = after;
            }
        }
    }
    (None, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> (String, Vec<(String, Option<String>)>) {
        let (word, rest) = parameters(value.as_bytes());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(word), rest.map(|(name, value)| (text(name), value)).collect())
    }

    #[test]
    fn parameters_come_quoted_and_bare() {
        for (value, expected) in [
            ("form-data", vec![]),
            ("form-data; name=\"a;b\"; filename=c.txt", vec![("name", Some("a;b")), ("filename", Some("c.txt"))]),
            ("form-data ;name = x ; y", vec![("name", Some("x"))]),
            (r#"form-data; name="a\"b\c""#, vec![("name", Some(r#"a"b\c"#))]),
            ("form-data; name=\"你好\"; x=", vec![("name", Some("你好")), ("x", Some(""))]),
            (
                "form-data; filename*=UTF-8''a; filename=\"b\"",
                vec![("filename*", Some("UTF-8''a")), ("filename", Some("b"))],
            ),
            ("form-data; name=\"never closed", vec![("name", None)]),
        ] {
            let expected = expected.into_iter().map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
            assert_eq!(read(value), ("form-data".to_owned(), expected.collect()), "{value}");
        }
    }
}
