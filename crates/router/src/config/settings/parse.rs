//! Parses text into typed values and collects all errors.

use std::time::Duration;

use super::{Values, setting};

/// Typed access to merged values.
pub(super) struct Reader<'a> {
    values: &'a Values,
    pub(super) problems: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(values: &'a Values) -> Self {
        Self { values, problems: Vec::new() }
    }

    /// The value or its default.
    pub(super) fn text(&self, name: &str) -> &'a str {
        let default = setting(name).expect("only settings of the table are read").default;
        self.values.get(name).map_or(default, String::as_str).trim()
    }

    /// `None` if empty.
    pub(super) fn non_empty(&self, name: &str) -> Option<&'a str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    pub(super) fn list(&self, name: &str) -> Vec<String> {
        self.text(name).split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    pub(super) fn switch(&mut self, name: &str) -> bool {
        let text = self.text(name);
        parse_bool(text).unwrap_or_else(|| {
            self.problem(name, text, "must be true or false");
            false
        })
    }

    /// `auto` is `None`.
    pub(super) fn switch_or_auto(&mut self, name: &str) -> Option<bool> {
        match self.text(name) {
            "auto" | "" => None,
            _ => Some(self.switch(name)),
        }
    }

    pub(super) fn number<T: TryFrom<i64> + Default>(&mut self, name: &str) -> T {
        let text = self.text(name);
        match text.parse::<i64>().ok().and_then(|number| T::try_from(number).ok()) {
            Some(number) => number,
            None => {
                self.problem(name, text, "must be a number that is not negative");
                T::default()
            }
        }
    }

    pub(super) fn duration(&mut self, name: &str) -> Duration {
        let text = self.text(name);
        match parse_duration(text) {
            Some(duration) => duration,
            None => {
                self.problem(name, text, "must be a duration that is not negative, like 30s, 200ms or 1m30s");
                Duration::ZERO
            }
        }
    }

    pub(super) fn positive_duration(&mut self, name: &str) -> Duration {
        let before = self.problems.len();
        let duration = self.duration(name);
        if duration.is_zero() && self.problems.len() == before {
            self.problem(name, self.text(name), "must be greater than zero");
        }
        duration
    }

    /// Seconds as a decimal; 0 is `None`.
    pub(super) fn seconds(&mut self, name: &str) -> Option<Duration> {
        let text = self.text(name);
        match text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(duration) => Some(duration).filter(|duration| !duration.is_zero()),
            None => {
                self.problem(name, text, "must be a number of seconds");
                None
            }
        }
    }

    pub(super) fn problem(&mut self, name: &str, value: &str, why: &str) {
        self.problems.push(format!("--{name} '{value}': {why}"));
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a duration in Go's format: numbers with units, one after the other.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_len = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..unit_len] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        rest = &rest[unit_len..];
        total = total.checked_add(Duration::try_from_secs_f64(amount * unit).ok()?)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (text, ms) in
            [("0", 0), ("30s", 30_000), ("200ms", 200), ("1m30s", 90_000), ("1.5h", 5_400_000), ("90s", 90_000)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "-1s", "s", "1x", "1s1", "1 s", "..s", "1e3s", "99999999999999999999h"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
