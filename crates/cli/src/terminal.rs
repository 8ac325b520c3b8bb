//! The user's terminal: colours, size, and raw mode.

use rustix::termios::{self, OptionalActions, Termios};
use std::io::{IsTerminal, stderr, stdin};

/// Whether stderr is a terminal and `NO_COLOR` is not set.
pub(crate) fn supports_colour() -> bool {
    stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Columns and rows of the terminal on standard input.
pub(crate) fn size() -> Option<(u16, u16)> {
    let size = termios::tcgetwinsize(stdin()).ok()?;
    Some((size.ws_col, size.ws_row))
}

/// Standard input in raw mode until dropped.
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Returns `None`, and changes nothing, when standard input is not a terminal.
    pub(crate) fn enter() -> Option<Self> {
        if !stdin().is_terminal() {
            return None;
        }
        let before = termios::tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}
