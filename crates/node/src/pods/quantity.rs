//! Kubernetes quantities (`500m`, `1.5Gi`, `2e3`) as exact thousandths.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use thiserror::Error;

/// An amount in thousandths of its unit; sub-thousandths are rounded up, as Kubernetes does.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Milli(pub i128);

impl Milli {
    /// Whole units, rounded up.
    pub fn units(self) -> i128 {
        self.0.div_euclid(1000) + i128::from(self.0.rem_euclid(1000) != 0)
    }

    /// Whole units as `u64`; negative amounts are zero, huge ones saturate.
    pub fn units_u64(self) -> u64 {
        u64::try_from(self.units().max(0)).unwrap_or(u64::MAX)
    }
}

/// Why a string is not a quantity.
#[derive(Debug, Error, Eq, PartialEq)]
#[error("{0:?} is not a quantity; write a number with an optional suffix such as m, k, Mi or Gi")]
pub struct QuantityError(pub String);

/// Parses the text of a quantity.
pub fn parse(text: &str) -> Result<Milli, QuantityError> {
    let bad = || QuantityError(text.to_owned());
    let (sign, rest) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 24 || fraction.len() > 12 {
        return Err(bad());
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().map_err(|_| bad())?;
    let (numerator, denominator) = scale(suffix).ok_or_else(bad)?;
    let divisor =
        10_i128.checked_pow(fraction.len() as u32).and_then(|f| f.checked_mul(denominator)).ok_or_else(bad)?;
    let scaled = digits.checked_mul(numerator).and_then(|n| n.checked_mul(1000)).ok_or_else(bad)?;
    let milli = scaled / divisor + i128::from(scaled % divisor != 0);
    Ok(Milli(sign * milli))
}

/// Parses a quantity of an object.
pub fn of(quantity: &Quantity) -> Result<Milli, QuantityError> {
    parse(&quantity.0)
}

/// The suffix as a fraction.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| Some((1_i128 << (10 * power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
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
    use super::*;

    #[test]
    fn every_notation_is_read_exactly() {
        for (text, milli) in [
            ("1", 1000),
            ("500m", 500),
            ("0.1", 100),
            (".5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("2e3", 2_000_000),
            ("1E", 1_000_000_000_000_000_000_000),
            ("3E2", 300_000),
            ("100Mi", 104_857_600_000),
            ("1n", 1),
            ("-2", -2000),
            ("12k", 12_000_000),
        ] {
            assert_eq!(parse(text), Ok(Milli(milli)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_quantity_is_refused_with_its_text() {
        for text in ["", "Mi", "1.2.3", "1 Gi", "one", "1KB", "e5", "99999999999999999999999999"] {
            assert_eq!(parse(text), Err(QuantityError(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn whole_units_round_up() {
        assert_eq!(Milli(1).units(), 1);
        assert_eq!(Milli(1000).units(), 1);
        assert_eq!(Milli(-1).units_u64(), 0);
    }
}
