//! Quantities that keep their notation: a message names `64Mi` and not `67108864`.

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Add, Sub},
};

use agent_sandbox_api::quantity::Quantity;
use serde_json::Value;

const NANOS: i128 = 1_000_000_000;

/// The notation of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Notation {
    /// `500m`, `2`, `1k`.
    #[default]
    Decimal,
    /// `64Mi`.
    Binary,
    /// `2e3`.
    Exponent,
}

/// A quantity with its notation. Equality and order are those of the amounts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Amount {
    nanos: i128,
    notation: Notation,
}

/// Amounts by the name of their resource.
pub(crate) type Amounts = BTreeMap<String, Amount>;

impl Amount {
    pub(crate) const ONE: Self = Self { nanos: NANOS, notation: Notation::Decimal };

    pub(crate) fn count(number: usize) -> Self {
        Self { nanos: NANOS.saturating_mul(number as i128), notation: Notation::Decimal }
    }

    /// Reads a quantity in JSON; `None` if it is not valid.
    pub(crate) fn of_json(value: &Value) -> Option<Self> {
        let nanos = Quantity::of_json(value)?.nanos();
        let text = value.as_str().unwrap_or_default();
        let notation = if text.ends_with('i') {
            Notation::Binary
        } else if text.ends_with(|c: char| c.is_ascii_digit()) && text.contains(['e', 'E']) {
            Notation::Exponent
        } else {
            Notation::Decimal
        };
        Some(Self { nanos, notation })
    }

    pub(crate) fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub(crate) fn is_positive(self) -> bool {
        self.nanos > 0
    }

    /// The same amount, rounded up to a whole number.
    pub(crate) fn rounded_up(self) -> Self {
        let nanos = self.nanos.div_euclid(NANOS) + i128::from(self.nanos.rem_euclid(NANOS) != 0);
        Self { nanos: nanos.saturating_mul(NANOS), ..self }
    }

    /// How many times `other` this amount is; `other` must not be zero.
    pub(crate) fn ratio(self, other: Self) -> f64 {
        self.nanos as f64 / other.nanos as f64
    }

    pub(crate) fn as_f64(self) -> f64 {
        self.nanos as f64 / NANOS as f64
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Amount {}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Add for Amount {
    type Output = Self;

    /// The sum has the notation of the first summand that is not zero.
    fn add(self, other: Self) -> Self {
        let notation = if self.nanos == 0 { other.notation } else { self.notation };
        Self { nanos: self.nanos.saturating_add(other.nanos), notation }
    }
}

impl Sub for Amount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let notation = if self.nanos == 0 { other.notation } else { self.notation };
        Self { nanos: self.nanos.saturating_sub(other.nanos), notation }
    }
}

impl fmt::Display for Amount {
    /// Kubernetes' canonical form: the largest unit in which the amount is a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos % NANOS == 0;
        if self.notation == Notation::Binary && whole && self.nanos.abs() >= 1024 * NANOS {
            let (mut number, mut unit) = (self.nanos / NANOS, 0);
            while number % 1024 == 0 && unit + 1 < BINARY.len() {
                number /= 1024;
                unit += 1;
            }
            return write!(f, "{number}{}", BINARY[unit]);
        }
        let (mut number, mut unit) = (self.nanos, 0);
        while number % 1000 == 0 && unit + 1 < UNITS.len() {
            number /= 1000;
            unit += 1;
        }
        match (self.notation, unit) {
            (Notation::Exponent, 3) => write!(f, "{number}"),
            (Notation::Exponent, _) => write!(f, "{number}e{}", 3 * unit as i32 - 9),
            _ => write!(f, "{number}{}", UNITS[unit]),
        }
    }
}

/// The valid quantities of an object such as `resources.requests`.
pub(crate) fn amounts(list: &Value) -> Amounts {
    let members = list.as_object().into_iter().flatten();
    members.filter_map(|(name, amount)| Some((name.clone(), Amount::of_json(amount)?))).collect()
}

/// Adds all of `more` to `sum`.
pub(crate) fn add_all(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let before = sum.get(name).copied().unwrap_or_default();
        sum.insert(name.clone(), before + *amount);
    }
}

/// Raises each of `sum` to at least that of `other`.
pub(crate) fn raise_all(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        if sum.get(name).is_none_or(|before| amount > before) {
            sum.insert(name.clone(), *amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_print_as_kubernetes_prints_them() {
        for (text, shown) in [
            ("0", "0"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("64Mi", "64Mi"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("2000", "2k"),
            ("2e3", "2e3"),
            ("2E", "2E"),
            ("1.5Ki", "1536"),
            ("0.1Ki", "102400m"),
            ("100n", "100n"),
        ] {
            assert_eq!(Amount::of_json(&json!(text)).unwrap().to_string(), shown, "{text}");
        }
        assert_eq!(Amount::of_json(&json!(3)).unwrap().to_string(), "3");
        assert!(Amount::of_json(&json!("many")).is_none());
    }

    #[test]
    fn a_sum_keeps_the_notation_of_its_first_part() {
        let read = |text: &str| Amount::of_json(&json!(text)).unwrap();
        assert_eq!((Amount::default() + read("64Mi") + read("64Mi")).to_string(), "128Mi");
        assert_eq!((read("1Gi") - read("512Mi")).to_string(), "512Mi");
        assert_eq!((read("100m") + read("900m")).to_string(), "1");
        assert_eq!(Amount::count(7).to_string(), "7");
        assert_eq!(read("1500m").rounded_up().to_string(), "2");
    }
}
