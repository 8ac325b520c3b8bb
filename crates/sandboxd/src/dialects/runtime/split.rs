//! Splits a command into words by POSIX quoting rules only, for strict mode: no expansion, no operators.

/// Splits `command` into words.
pub(super) fn split_words(command: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = command.chars();
    while let Some(character) = characters.next() {
        match character {
            ' ' | '\t' | '\r' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next().ok_or("No closing quotation")? {
                        '\'' => break,
                        other => word.push(other),
                    }
                }
            }
            '"' => double_quoted(&mut characters, word.get_or_insert_default())?,
            '\\' => {
                let escaped = characters.next().ok_or("No escaped character")?;
                word.get_or_insert_default().push(escaped);
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

fn double_quoted(characters: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), &'static str> {
    loop {
        match characters.next().ok_or("No closing quotation")? {
            '"' => return Ok(()),
            '\\' => {
                let escaped = characters.next().ok_or("No closing quotation")?;
                if !matches!(escaped, '"' | '\\') {
                    word.push('\\');
                }
                word.push(escaped);
            }
            other => word.push(other),
        }
    }
}

/// Fuzz target: the bytes are a command line.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let Ok(command) = std::str::from_utf8(data) else { return };
    if let Ok(words) = split_words(command) {
        assert!(words.iter().map(String::len).sum::<usize>() <= command.len());
    }
}

#[cfg(test)]
mod tests {
    use super::split_words;

    /// D-018: operators are ordinary words.
    #[test]
    fn only_quoting_is_understood() {
        for (command, words) in [
            ("echo x > f", vec!["echo", "x", ">", "f"]),
            ("a 'b  c' \"d\\\"e\" f\\ g", vec!["a", "b  c", "d\"e", "f g"]),
            ("a''b \"\"", vec!["ab", ""]),
            ("echo \"a\\b\" # no comment", vec!["echo", "a\\b", "#", "no", "comment"]),
            ("  ", vec![]),
        ] {
            assert_eq!(split_words(command).expect("balanced"), words, "{command}");
        }
    }

    /// D-009
    #[test]
    fn unbalanced_quotes_are_an_error() {
        assert_eq!(split_words("echo 'x"), Err("No closing quotation"));
        assert_eq!(split_words("echo \"x"), Err("No closing quotation"));
        assert_eq!(split_words("echo \\"), Err("No escaped character"));
    }
}
