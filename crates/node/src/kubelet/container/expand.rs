//! Expands `$(VAR)` references in commands, arguments and environment values.

/// Replaces `$(NAME)` by the result of `lookup`. `$$` is a literal dollar; an unknown or incomplete reference stays as
/// it is.
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => out.push_str(&rest[at..at + name.len() + 3]),
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_and_everything_else_stays() {
        let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, want) in [
            ("$(A)-$(A)", "1-1"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(B)", "$(B)"),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("cost $", "cost $"),
            ("é$(A)é", "é1é"),
            ("$()", "$()"),
        ] {
            assert_eq!(expand(text, lookup), want, "{text}");
        }
    }
}
