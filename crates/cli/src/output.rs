//! Printing: tables for people; JSON, YAML and names for programs.

use crate::args::OutputFormat;
use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};

/// A column-aligned table, in kubectl's manner: capitals on top, three spaces between columns.
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. Cells may be what another user wrote: none moves the cursor or begins a line.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len(), "a row has as many cells as the header");
        self.rows.push(cells.iter().map(|cell| visible(cell).replace(['\n', '\t'], " ")).collect());
    }

    pub(crate) fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].chars().count());
                cells.chain([self.header[column].len()]).max().unwrap_or_default()
            })
            .collect();
        let mut text = String::new();
        let header: Vec<String> = self.header.iter().map(|cell| (*cell).to_owned()).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(cells.join("   ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Like [`print`], for bytes that may not be UTF-8.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// Moves the cursor to the top left corner and clears the screen.
pub(crate) const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// Prints a value in the format: serialised as JSON or YAML, or the text that `table` or, for `-o name`, `names`
/// returns.
pub(crate) fn emit<T: Serialize>(
    format: OutputFormat,
    value: &T,
    names: impl FnOnce() -> String,
    table: impl FnOnce() -> String,
) -> Result<()> {
    print(&render(format, value, names, table)?)
}

/// The text that [`emit`] prints.
pub(crate) fn render<T: Serialize>(
    format: OutputFormat,
    value: &T,
    names: impl FnOnce() -> String,
    table: impl FnOnce() -> String,
) -> Result<String> {
    Ok(match format {
        OutputFormat::Table => table(),
        OutputFormat::Name => names(),
        OutputFormat::Json => serde_json::to_string_pretty(&without_managed_fields(value)?)? + "\n",
        OutputFormat::Yaml => serde_saphyr::to_string(&without_managed_fields(value)?)?,
    })
}

/// The value without `metadata.managedFields` of the object or of the list's objects, as kubectl prints it.
fn without_managed_fields(value: &impl Serialize) -> Result<Value> {
    let mut value = serde_json::to_value(value)?;
    let strip = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    };
    strip(&mut value);
    value.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(strip);
    Ok(value)
}

/// Replaces what a terminal would obey, or what would show text in another order than it has.
pub(crate) fn visible(text: &str) -> String {
    let show = |letter: char| match letter {
        '\n' | '\t' => letter.to_string(),
        other if is_unsafe(other) => format!("<U+{:04X}>", u32::from(other)),
        other => other.to_string(),
    };
    text.chars().map(show).collect()
}

/// Control characters, and those that reorder text.
pub(crate) fn is_unsafe(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// An age the way kubectl writes it: the largest unit, or two for small counts.
pub(crate) fn age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => {
            let rest = seconds % 60;
            if rest == 0 { format!("{minutes}m") } else { format!("{minutes}m{rest}s") }
        }
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => {
            let rest = minutes % 60;
            if rest == 0 { format!("{hours}h") } else { format!("{hours}h{rest}m") }
        }
        () if days < 2 => format!("{hours}h"),
        () if days < 8 => {
            let rest = hours % 24;
            if rest == 0 { format!("{days}d") } else { format!("{days}d{rest}h") }
        }
        () if days < 730 => format!("{days}d"),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["NAME", "READY"]);
        table.row(vec!["a-long-name".into(), "True".into()]);
        table.row(vec!["b".into(), "".into()]);
        assert_eq!(table.render(), "NAME          READY\na-long-name   True\nb\n");
    }

    #[test]
    fn cells_of_other_users_do_not_reach_the_terminal_raw() {
        let mut table = Table::new(&["NAME"]);
        table.row(vec!["a\u{1b}[2Jb\nREADY\rc".into()]);
        assert_eq!(table.render(), "NAME\na<U+001B>[2Jb READY<U+000D>c\n");
        assert_eq!(visible("a\tb\n"), "a\tb\n");
        assert_eq!(visible("\x1b]0;x\x07\r\u{202e}"), "<U+001B>]0;x<U+0007><U+000D><U+202E>");
    }

    #[test]
    fn objects_are_printed_without_managed_fields() {
        let object = serde_json::json!({"metadata": {"name": "a", "managedFields": [1]}, "spec": {"managedFields": 2}});
        let list = serde_json::json!({"metadata": {}, "items": [object]});
        let text = |value: &Value| render(OutputFormat::Json, value, String::new, String::new).unwrap();
        assert_eq!(text(&object).matches("managedFields").count(), 1, "only in the spec");
        assert_eq!(text(&list).matches("managedFields").count(), 1);
    }

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        let cases = [
            (5, "5s"),
            (119, "119s"),
            (125, "2m5s"),
            (660, "11m"),
            (7200, "120m"),
            (14_400, "4h"),
            (200_000, "2d7h"),
            (900_000, "10d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(age(seconds), expected, "{seconds}");
        }
    }
}
