//! Values and flags as Go programs write them.

use std::{net::SocketAddr, time::Duration};

/// Turns `-flag` into `--flag`, as Go's flag package treats them alike. Values and `--` are left alone.
pub fn to_long_flags<I: IntoIterator<Item = String>>(arguments: I) -> Vec<String> {
    arguments
        .into_iter()
        .map(|argument| match argument.strip_prefix('-') {
            Some(rest) if rest.len() > 1 && rest.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                format!("-{argument}")
            }
            _ => argument,
        })
        .collect()
}

/// A duration such as `5m`, `1h30m`, `250ms` or `0`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration such as 300ms, 5s or 1h30m");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err(format!("{text:?} is negative"));
    }
    let mut rest = text;
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let seconds = match &rest[..unit] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        total += number * seconds;
        rest = &rest[unit..];
    }
    if text.is_empty() { Err(wrong()) } else { Duration::try_from_secs_f64(total).map_err(|_| wrong()) }
}

/// An address such as `:8080`, `127.0.0.1:8080` or `[::1]:8080`; `0` means none.
pub fn parse_address(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "0" {
        return Ok(None);
    }
    let full =
        if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.replacen("localhost:", "127.0.0.1:", 1) };
    full.parse().map(Some).map_err(|_| format!("{text:?} is not an address such as :8080 or 127.0.0.1:8080"))
}
