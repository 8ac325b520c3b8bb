//! Names and contents that a sandbox chose, made safe for a terminal.

use crate::output::is_unsafe;
use std::{os::unix::ffi::OsStrExt as _, path::Path};

/// A path as text. Names that are not UTF-8, or contain control characters or quotes, are quoted as git does.
pub(super) fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|letter| letter == '"' || letter == '\\' || is_unsafe(letter)) => text.to_owned(),
        _ => {
            let escaped: String = bytes
                .iter()
                .map(|byte| match byte {
                    b'"' => "\\\"".to_owned(),
                    b'\\' => "\\\\".to_owned(),
                    b'\n' => "\\n".to_owned(),
                    b'\t' => "\\t".to_owned(),
                    0x20..0x7f => char::from(*byte).to_string(),
                    other => format!("\\{other:03o}"),
                })
                .collect();
            format!("\"{escaped}\"")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_that_a_sandbox_wrote() {
        assert_eq!(quoted(Path::new("src/grüße.rs")), "src/grüße.rs");
        let name = std::ffi::OsStr::from_bytes(b"a\x1b[2J\xff\n\"");
        assert_eq!(quoted(Path::new(name)), r#""a\033[2J\377\n\"""#);
    }
}
