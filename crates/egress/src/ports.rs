//! Sets of TCP ports.

use std::fmt;

/// `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// Disjoint ranges in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSet(Vec<PortRange>);

impl PortSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(port))
    }

    /// All ports in ascending order.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.0.iter().flat_map(|range| range.first..=range.last)
    }

    #[must_use]
    pub fn with(mut self, range: PortRange) -> Self {
        self.0.push(range);
        self.0.sort_unstable();
        let mut merged: Vec<PortRange> = Vec::with_capacity(self.0.len());
        for range in self.0 {
            match merged.last_mut() {
                Some(last) if u32::from(range.first) <= u32::from(last.last) + 1 => {
                    last.last = last.last.max(range.last)
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    #[must_use]
    pub fn without(self, taken: PortRange) -> Self {
        let pieces = self.0.into_iter().flat_map(|range| {
            let below = (range.first < taken.first)
                .then(|| PortRange { first: range.first, last: range.last.min(taken.first.saturating_sub(1)) });
            let above = (range.last > taken.last)
                .then(|| PortRange { first: range.first.max(taken.last.saturating_add(1)), last: range.last });
            [below, above].into_iter().flatten()
        });
        Self(pieces.collect())
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let pairs = self.0.iter().flat_map(|a| other.0.iter().map(move |b| (a, b)));
        let common = pairs.map(|(a, b)| PortRange { first: a.first.max(b.first), last: a.last.min(b.last) });
        Self(common.filter(|range| range.first <= range.last).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges() -> impl Strategy<Value = Vec<PortRange>> {
        let range = (0u16..40, 0u16..40).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) });
        prop::collection::vec(range, 0..6)
    }

    fn set(ranges: &[PortRange]) -> PortSet {
        ranges.iter().fold(PortSet::default(), |set, range| set.with(*range))
    }

    proptest! {
        #[test]
        fn sets_behave_like_sets(added in ranges(), taken in ranges(), other in ranges()) {
            let left = taken.iter().fold(set(&added), |set, range| set.without(*range));
            let common = left.intersection(&set(&other));
            for port in 0..42 {
                let within = |list: &[PortRange]| list.iter().any(|range| range.contains(port));
                prop_assert_eq!(left.contains(port), within(&added) && !within(&taken));
                prop_assert_eq!(common.contains(port), left.contains(port) && within(&other));
            }
            let ports: Vec<u16> = common.ports().collect();
            prop_assert!(ports.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }

    #[test]
    fn the_ends_of_the_number_space_are_no_exception() {
        let all = set(&[PortRange { first: 0, last: u16::MAX }]);
        assert!(all.clone().without(PortRange { first: 0, last: u16::MAX }).is_empty());
        assert_eq!(all.without(PortRange::one(0)).ports().next(), Some(1));
    }
}
