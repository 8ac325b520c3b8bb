//! Paths in requests, before any file system call: one percent-decode, lexical normalisation, and an error for a path
//! above its root. Pure functions.

mod resolver;

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use percent_encoding::percent_decode_str;

pub use resolver::{Mode, PathResolver, Purpose};

/// Maximum length of a path in bytes: the kernel's PATH_MAX.
const MAX_PATH: usize = 4096;

/// A path without `.`, `..`, empty components or NUL bytes, relative to some root. Empty means the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelPath {
    components: Vec<CString>,
}

/// Why a requested path is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PathError {
    #[error("path holds a NUL byte")]
    Nul,
    #[error("path leads above its root")]
    AboveRoot,
    #[error("path is longer than {MAX_PATH} bytes")]
    TooLong,
}

impl RelPath {
    /// Normalises lexically: drops empty components and `.`, and removes the component before each `..`.
    pub fn parse(path: &[u8]) -> Result<Self, PathError> {
        if path.len() > MAX_PATH {
            return Err(PathError::TooLong);
        }
        let mut components: Vec<CString> = Vec::new();
        for component in path.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => {
                    components.pop().ok_or(PathError::AboveRoot)?;
                }
                name => components.push(CString::new(name).map_err(|_| PathError::Nul)?),
            }
        }
        Ok(Self { components })
    }

    /// The components of an absolute path of this process, such as a configured base directory.
    pub fn of_directory(path: &Path) -> Result<Self, PathError> {
        Self::parse(path.as_os_str().as_bytes())
    }

    pub fn components(&self) -> &[CString] {
        &self.components
    }

    pub fn is_root(&self) -> bool {
        self.components.is_empty()
    }

    pub fn file_name(&self) -> Option<&CString> {
        self.components.last()
    }

    /// The rest of `self` below `prefix`; `None` if `self` is not below it.
    pub fn below(&self, prefix: &Self) -> Option<Self> {
        let rest = self.components.strip_prefix(prefix.components.as_slice())?;
        Some(Self { components: rest.to_vec() })
    }

    pub fn join(&self, rest: &Self) -> Self {
        Self { components: self.components.iter().chain(&rest.components).cloned().collect() }
    }

    pub fn child(&self, name: CString) -> Self {
        let mut components = self.components.clone();
        components.push(name);
        Self { components }
    }

    /// `a/b/c`, without a leading slash; `.` for the root.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.components.is_empty() {
            return b".".to_vec();
        }
        let parts: Vec<&[u8]> = self.components.iter().map(|part| part.to_bytes()).collect();
        parts.join(&b'/')
    }

    /// The path with a leading slash, for messages and responses.
    pub fn display(&self) -> String {
        let mut text = String::from("/");
        if !self.is_root() {
            text.push_str(&String::from_utf8_lossy(&self.to_bytes()));
        }
        text
    }

    pub fn as_os_string(&self) -> std::ffi::OsString {
        OsStr::from_bytes(&self.to_bytes()).to_owned()
    }
}

/// Percent-decodes a raw URL path exactly once. Plus signs are left as they are.
pub fn decode_once(raw: &str) -> Vec<u8> {
    percent_decode_str(raw).collect()
}

/// Reverses the three escapes that HTML5 multipart encoders apply to a file name, and no others.
pub fn unescape_form_name(name: &str) -> String {
    if !name.contains('%') {
        return name.to_owned();
    }
    name.replace("%22", "\"").replace("%0D", "\r").replace("%0d", "\r").replace("%0A", "\n").replace("%0a", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str) -> Result<Vec<u8>, PathError> {
        RelPath::parse(path.as_bytes()).map(|path| path.to_bytes())
    }

    #[test]
    fn normalises_lexically() {
        assert_eq!(parsed("//a/./b//c/").expect("fine"), b"a/b/c");
        assert_eq!(parsed("a/../b").expect("fine"), b"b");
        assert_eq!(parsed("").expect("fine"), b".");
        assert_eq!(parsed("..."), Ok(b"...".to_vec()));
    }

    /// D-035, D-036: a path above the root is refused, wherever the dots are.
    #[test]
    fn paths_above_the_root_are_refused() {
        for path in ["..", "../x", "a/../../x", "/../etc/passwd", "./..", "a/b/../../.."] {
            assert_eq!(parsed(path), Err(PathError::AboveRoot), "{path}");
        }
        assert_eq!(parsed("a\0b"), Err(PathError::Nul));
        assert_eq!(parsed(&"a/".repeat(3000)), Err(PathError::TooLong));
    }

    /// D-044: decoded once only, so that a name that contains a percent escape is reachable.
    #[test]
    fn decodes_exactly_once() {
        assert_eq!(decode_once("100%2520.txt"), b"100%20.txt");
        assert_eq!(decode_once("a%2Fb+c"), b"a/b+c");
        assert_eq!(decode_once("%zz%"), b"%zz%");
    }

    /// D-045
    #[test]
    fn form_names_lose_only_the_three_html5_escapes() {
        assert_eq!(unescape_form_name("a %22q%22.txt"), "a \"q\".txt");
        assert_eq!(unescape_form_name("100%20.txt"), "100%20.txt");
    }
}
