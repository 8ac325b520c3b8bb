//! Kubernetes quantities: `100m`, `1.5Gi`, `1e3`.

/// A quantity as a number of its base unit; `None` when it is malformed.
pub fn parse(text: &str) -> Option<f64> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    if number.is_empty() || !number.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value: f64 = number.parse().ok()?;
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        exponent => 10f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(value * factor)
}

/// A quantity in a JSON value: text or a bare number.
pub fn of(value: &serde_json::Value) -> Option<f64> {
    match value {
        serde_json::Value::String(text) => parse(text),
        serde_json::Value::Number(number) => number.as_f64(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn suffixes_scale() {
        for (text, value) in
            [("1", 1.0), ("100m", 0.1), ("1.5Gi", 1.5 * 1073741824.0), ("1e3", 1000.0), ("2E", 2e18), ("-1k", -1000.0)]
        {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for bad in ["", "Gi", "1 Gi", "1gi", "abc", "1e", "--1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
