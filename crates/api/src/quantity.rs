//! Kubernetes quantities (`500m`, `1.5Gi`, `2e3`), exactly.

use serde_json::Value;

/// An amount in billionths of its unit, which is the finest step in Kubernetes. Finer values are rounded up, as
/// Kubernetes does.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Quantity(i128);

/// Why a text is not a quantity.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
#[error("{0:?} is not a quantity; write a number with an optional suffix such as m, k, Mi or Gi")]
pub struct QuantityError(pub String);

const NANOS: i128 = 1_000_000_000;

impl Quantity {
    pub const ZERO: Self = Self(0);

    /// Parses the text of a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        read(text).map(Self).ok_or_else(|| QuantityError(text.to_owned()))
    }

    /// Parses a quantity in JSON: a string or a number. `None` when it is neither, or malformed.
    pub fn of_json(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => read(text).map(Self),
            Value::Number(number) => read(&number.to_string()).map(Self),
            _ => None,
        }
    }

    /// Billionths: the exact amount.
    pub fn nanos(self) -> i128 {
        self.0
    }

    /// Thousandths, rounded up: the unit of CPU requests and limits.
    pub fn milli(self) -> i128 {
        divide_up(self.0, NANOS / 1000)
    }

    /// Whole units, rounded up.
    pub fn units(self) -> i128 {
        divide_up(self.0, NANOS)
    }

    /// Whole units as `u64`; negative amounts are zero, huge ones saturate.
    pub fn units_u64(self) -> u64 {
        u64::try_from(self.units().max(0)).unwrap_or(u64::MAX)
    }
}

fn divide_up(amount: i128, by: i128) -> i128 {
    amount.div_euclid(by) + i128::from(amount.rem_euclid(by) != 0)
}

/// Maximum number of digits: those of the largest number of billionths, as a sum of quantities may be shown.
const MAX_DIGITS: usize = 39;

fn read(text: &str) -> Option<i128> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let has_digit = number.bytes().any(|b| b.is_ascii_digit());
    if !has_digit || fraction.contains('.') || whole.len() + fraction.len() > MAX_DIGITS {
        return None;
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let (numerator, denominator) = scale(suffix)?;
    let divisor = 10_i128.checked_pow(fraction.len() as u32)?.checked_mul(denominator)?;
    let scaled = digits.checked_mul(numerator)?;
    // Whole billionths first, so that a value that fits does not overflow in an intermediate step.
    let nanos = (scaled / divisor).checked_mul(NANOS)?;
    let rest = (scaled % divisor).checked_mul(NANOS)?;
    let nanos = nanos.checked_add(divide_up(rest, divisor))?;
    Some(if negative { -nanos } else { nanos })
}

/// The suffix as a fraction.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| Some((1_i128 << (10 * power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, NANOS)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => Some((1000, 1)),
        "M" => Some((1_000_000, 1)),
        "G" => Some((1_000_000_000, 1)),
        "T" => Some((1_000_000_000_000, 1)),
        "P" => Some((1_000_000_000_000_000, 1)),
        "E" => Some((1_000_000_000_000_000_000, 1)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
            Some(if exponent < 0 { (1, power) } else { (power, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_notation_is_read_exactly() {
        for (text, nanos) in [
            ("1", NANOS),
            ("500m", NANOS / 2),
            ("0.1", NANOS / 10),
            (".5", NANOS / 2),
            ("1.", NANOS),
            ("1.5Gi", 1_610_612_736 * NANOS),
            ("2e3", 2000 * NANOS),
            ("1E", 1_000_000_000_000_000_000 * NANOS),
            ("3E2", 300 * NANOS),
            ("100Mi", 104_857_600 * NANOS),
            ("1n", 1),
            ("1.5n", 2),
            ("-2", -2 * NANOS),
            ("+12k", 12_000 * NANOS),
            ("0.1Gi", 107_374_182_400_000_000),
            ("15Ei", 15 * (1 << 60) * NANOS),
            ("91250500088888888880000034597200m", 91_250_500_088_888_888_880_000_034_597_200_000_000),
        ] {
            assert_eq!(Quantity::parse(text), Ok(Quantity(nanos)), "{text}");
        }
        assert_eq!(Quantity::of_json(&json!(0.25)).map(Quantity::milli), Some(250));
        assert_eq!(
            Quantity::of_json(&json!(1_000_000_000_000_000_000_000_f64)).map(Quantity::units),
            Some(10_i128.pow(21))
        );
        assert_eq!(Quantity::of_json(&json!(true)), None);
    }

    #[test]
    fn invalid_quantities_are_rejected_with_their_text() {
        for text in
            ["", "Mi", ".", "1.2.3", "1 Gi", " 1", "one", "1KB", "1gi", "e5", "1e", "--1", "1e99", &"9".repeat(40)]
        {
            assert_eq!(Quantity::parse(text), Err(QuantityError(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn amounts_round_up() {
        let read = |text: &str| Quantity::parse(text).unwrap_or_default();
        assert_eq!((read("1n").milli(), read("1n").units(), read("1m").units()), (1, 1, 1));
        assert_eq!((read("1").units(), read("1001m").units()), (1, 2));
        assert_eq!((read("-1").units_u64(), read("1E").milli()), (0, 10_i128.pow(21)));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_order_follows_the_numbers(
            text in "[-+]?[0-9.]{0,8}[numkMGTPEi e0-9-]{0,4}",
            a in 0u32..,
            b in 0u32..,
        ) {
            let _ = Quantity::parse(&text);
            let read = |n: u32| Quantity::parse(&format!("{n}m"));
            prop_assert_eq!(read(a).ok().cmp(&read(b).ok()), a.cmp(&b));
        }
    }
}
