//! Kubernetes quantities (`500m`, `1.5Gi`, `2e3`) in thousandths, the unit in which CPU is counted.

pub use agent_sandbox_api::quantity::QuantityError;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

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

/// Bytes as people write limits: in whole Gi, Mi or Ki where the amount is.
pub fn binary(bytes: u64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    match whole {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None if bytes >= 1 << 30 => format!("{}Mi", bytes >> 20),
        None => bytes.to_string(),
    }
}

/// Parses the text of a quantity.
pub fn parse(text: &str) -> Result<Milli, QuantityError> {
    agent_sandbox_api::quantity::Quantity::parse(text).map(|quantity| Milli(quantity.milli()))
}

/// Parses a quantity of an object.
pub fn of(quantity: &Quantity) -> Result<Milli, QuantityError> {
    parse(&quantity.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_counted_in_thousandths() {
        for (text, milli) in
            [("1", 1000), ("500m", 500), (".5", 500), ("1n", 1), ("100Mi", 104_857_600_000), ("-2", -2000)]
        {
            assert_eq!(parse(text), Ok(Milli(milli)), "{text}");
        }
        assert_eq!(parse("1KB"), Err(QuantityError("1KB".to_owned())));
    }

    #[test]
    fn whole_units_round_up() {
        assert_eq!(Milli(1).units(), 1);
        assert_eq!(Milli(1000).units(), 1);
        assert_eq!(Milli(-1).units_u64(), 0);
    }
}
