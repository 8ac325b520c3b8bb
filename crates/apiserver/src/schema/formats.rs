//! Validation of the string formats that Kubernetes checks.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine as _;

/// False if `text` does not have the given format. Formats unknown to Kubernetes are not checked.
pub(super) fn is_valid(format: &str, text: &str) -> bool {
    match format {
        "date-time" => is_date_time(text),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "duration" => is_duration(text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => uuid::Uuid::parse_str(text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "uri" => http::Uri::try_from(text).is_ok() && text.contains(':'),
        "hostname" => {
            text.len() <= 253 && crate::builtin::names::dns1123_subdomain(&text.to_ascii_lowercase()).is_empty()
        }
        _ => true,
    }
}

fn is_date_time(text: &str) -> bool {
    // RFC 3339: a date, T, a time, and an offset.
    let shape = text.len() >= 20 && text.as_bytes().get(10).is_some_and(|c| matches!(c, b'T' | b't' | b' '));
    shape && text.parse::<jiff::Timestamp>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let Ok(bits) = bits.parse::<u8>() else { return false };
    (address.parse::<Ipv4Addr>().is_ok() && bits <= 32) || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

/// Durations in Go's syntax: `1h30m`, `250ms`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.trim_start_matches(['-', '+']);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if number == 0 || rest[..number].parse::<f64>().is_err() {
            return false;
        }
        rest = &rest[number..];
        let Some(unit) = ["ns", "us", "µs", "ms", "s", "m", "h", "d", "w"].iter().find(|u| rest.starts_with(**u))
        else {
            return false;
        };
        rest = &rest[unit.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::is_valid;

    #[test]
    fn formats_accept_and_refuse() {
        for (format, good, bad) in [
            ("date-time", "2026-01-02T03:04:05Z", "tomorrow"),
            ("date-time", "2026-01-02T03:04:05.123+02:00", "2026-01-02"),
            ("date", "2026-01-02", "2026-1-2"),
            ("duration", "1h30m", "1 hour"),
            ("byte", "aGk=", "%%%"),
            ("uuid", "550e8400-e29b-41d4-a716-446655440000", "550e"),
            ("ipv4", "1.2.3.4", "1.2.3.256"),
            ("ipv6", "::1", "1.2.3.4"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
        ] {
            assert!(is_valid(format, good), "{format} {good}");
            assert!(!is_valid(format, bad), "{format} {bad}");
        }
        assert!(is_valid("int32", "anything"));
    }
}
