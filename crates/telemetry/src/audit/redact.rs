//! Removes secrets from records before they are written, and bounds their size.

use regex::{Captures, Regex};

use super::Record;

/// Replacement for a secret.
const REDACTED: &str = "[redacted]";
/// Maximum number of arguments, and of characters of an argument or path.
const MAX_ARGUMENTS: usize = 64;
const MAX_CHARACTERS: usize = 4096;

/// Part of the name of a flag or variable whose value is secret.
const SECRET_NAME: &str = concat!(
    "(?i-u:[a-z0-9_-]*",
    "(?:password|passwd|passphrase|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?)",
    "[a-z0-9_-]*)"
);

/// A rule of the operator's that is not a regular expression.
#[derive(Debug, thiserror::Error)]
#[error("'{pattern}' is not a regular expression")]
pub struct RuleError {
    pattern: String,
    source: regex::Error,
}

/// The rules. Of each match everything is replaced but the first group.
pub struct Redaction {
    rules: Vec<Regex>,
    /// A flag whose value is the next argument.
    secret_flag: Regex,
}

impl Default for Redaction {
    fn default() -> Self {
        let rules = [
            // A private key in PEM form.
            r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)".to_owned(),
            // --password=x, TOKEN='x', "apiKey": "x"
            format!(r#"({SECRET_NAME}["']?\s*[=:]\s*)(?:"[^"]*"|'[^']*'|[^\s"'&;|<>]+)"#),
            // --password x
            format!(r#"(--?{SECRET_NAME}\s+)(?:"[^"]*"|'[^']*'|[^\s"'&;|<>-][^\s"'&;|<>]*)"#),
            // Authorization: Bearer x
            r"((?i-u:\b(?:bearer|basic)\s+))[A-Za-z0-9._~+/=-]{6,}".to_owned(),
            // https://user:password@host
            r"([A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:)[^@\s/]+(?:@)".to_owned(),
            // Tokens that are known by their prefix, and JSON Web Tokens.
            concat!(
                r"(?-u:\b(?:sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|",
                r"AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|e2b_\w{16,}|npm_\w{30,}|pypi-[\w-]{30,}|",
                r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*))"
            )
            .to_owned(),
        ];
        let compiled = |pattern: &String| Regex::new(pattern).expect("a built-in rule is a regular expression");
        Self { rules: rules.iter().map(compiled).collect(), secret_flag: compiled(&format!("^--?{SECRET_NAME}$")) }
    }
}

impl Redaction {
    /// Adds a rule of the operator's to the built-in ones.
    pub fn add_rule(&mut self, pattern: &str) -> Result<(), RuleError> {
        let rule = Regex::new(pattern).map_err(|source| RuleError { pattern: pattern.to_owned(), source })?;
        self.rules.push(rule);
        Ok(())
    }

    pub(super) fn apply(&self, record: &mut Record) {
        let mut next_is_secret = false;
        for argument in &mut record.argv {
            let is_flag = self.secret_flag.is_match(argument);
            if next_is_secret && !argument.starts_with('-') {
                *argument = REDACTED.to_owned();
            } else {
                self.clean(argument);
            }
            next_is_secret = is_flag;
        }
        if record.argv.len() > MAX_ARGUMENTS {
            record.argv.truncate(MAX_ARGUMENTS);
            record.argv.push("…".to_owned());
        }
        for text in [&mut record.path, &mut record.request, &mut record.reason] {
            self.clean(text);
        }
    }

    fn clean(&self, text: &mut String) {
        // Rules see the whole text, so that a secret is not recognised less for being cut.
        for rule in &self.rules {
            if rule.is_match(text) {
                let replace = |found: &Captures<'_>| {
                    let kept = found.get(1).map_or("", |kept| kept.as_str());
                    let end = if found[0].ends_with('@') { "@" } else { "" };
                    format!("{kept}{REDACTED}{end}")
                };
                *text = rule.replace_all(text, replace).into_owned();
            }
        }
        if let Some((end, _)) = text.char_indices().nth(MAX_CHARACTERS) {
            text.truncate(end);
            text.push('…');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Decision, Source};
    use super::*;

    fn redacted(argv: &[&str]) -> Vec<String> {
        let mut record = Record::new(Source::Api, Action::Exec, Decision::Allow, 101);
        record.argv = argv.iter().map(|&argument| argument.to_owned()).collect();
        Redaction::default().apply(&mut record);
        record.argv
    }

    #[test]
    fn secrets_are_removed_and_the_rest_stays() {
        let token = format!("ghp_{}", "a1".repeat(18));
        for (given, expected) in [
            ("mysql --password=hunter2 -h db", "mysql --password=[redacted] -h db".to_owned()),
            ("mysql --password hunter2 -h db", "mysql --password [redacted] -h db".to_owned()),
            ("OPENAI_API_KEY='a b' python x.py", "OPENAI_API_KEY=[redacted] python x.py".to_owned()),
            (r#"curl -d '{"client_secret": "x"}'"#, r#"curl -d '{"client_secret": [redacted]}'"#.to_owned()),
            ("curl -H 'Authorization: Bearer abcdefgh'", "curl -H 'Authorization: Bearer [redacted]'".to_owned()),
            ("git clone https://me:pw@host/x", "git clone https://me:[redacted]@host/x".to_owned()),
            (&format!("echo {token}"), "echo [redacted]".to_owned()),
            ("tokenize --input a.txt", "tokenize --input a.txt".to_owned()),
            ("ls -la /secrets", "ls -la /secrets".to_owned()),
        ] {
            assert_eq!(redacted(&[given]), [expected], "{given}");
        }
    }

    #[test]
    fn the_value_of_a_secret_flag_is_the_next_argument() {
        assert_eq!(redacted(&["login", "--token", "abc", "x"]), ["login", "--token", "[redacted]", "x"]);
        assert_eq!(redacted(&["login", "--token", "--verbose"]), ["login", "--token", "--verbose"]);
    }

    #[test]
    fn rules_of_the_operator_are_added() {
        let mut redaction = Redaction::default();
        redaction.add_rule(r"(ticket )\d+").unwrap();
        let mut text = "see ticket 4711".to_owned();
        redaction.clean(&mut text);
        assert_eq!(text, "see ticket [redacted]");
    }

    #[test]
    fn long_arguments_are_cut() {
        let argv = redacted(&[&"ä".repeat(MAX_CHARACTERS + 1)]);
        assert_eq!(argv[0].chars().count(), MAX_CHARACTERS + 1);
        assert_eq!(redacted(&["x"; 100]).len(), MAX_ARGUMENTS + 1);
    }
}
