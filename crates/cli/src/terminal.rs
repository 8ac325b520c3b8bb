//! The user's terminal: type, colours, size, and raw mode.

use rustix::termios::{self, LocalModes, OptionalActions, Termios};
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

/// Variables that programs with a terminal read, as far as they are set here: its type, its colours, the language.
pub(crate) fn environment(variable: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let names = ["TERM", "COLORTERM", "LANG"].into_iter();
    let set = names.filter_map(|name| Some((name.to_owned(), variable(name).filter(|value| !value.is_empty())?)));
    set.collect()
}

/// Standard input in another mode until dropped.
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Returns `None`, and changes nothing, when standard input is not a terminal.
    pub(crate) fn enter() -> Option<Self> {
        Self::change(Termios::make_raw)
    }

    /// Only delivers each key at once and without echo: Ctrl-C stays a signal, and output stays as it is.
    pub(crate) fn single_keys() -> Option<Self> {
        Self::change(|mode| mode.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO))
    }

    fn change(change: impl FnOnce(&mut Termios)) -> Option<Self> {
        if !stdin().is_terminal() {
            return None;
        }
        let before = termios::tcgetattr(stdin()).ok()?;
        let mut changed = before.clone();
        change(&mut changed);
        termios::tcsetattr(stdin(), OptionalActions::Now, &changed).ok()?;
        Some(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}
