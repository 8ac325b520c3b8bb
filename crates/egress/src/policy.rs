//! The policy of one sandbox: lists of rules, each of which must allow. A further list can only narrow: that of a claim
//! narrows its template's, and the ceiling of a namespace narrows both.

use std::fmt;

use crate::name::Name;
use crate::ports::PortSet;
use crate::rules::{RuleError, RuleSet};

/// A list and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layer {
    source: String,
    rules: RuleSet,
}

/// Lists of rules that must all allow. Without any list nothing is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    layers: Vec<Layer>,
}

/// Why something is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// By this rule.
    Rule(String),
    /// This list has no rule that allows it.
    NotAllowed(String),
    /// There are no rules.
    NoRules,
}

/// What was decided, with the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allowed { rule: String },
    Denied(Denied),
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "denied by the rule {rule}"),
            Self::NotAllowed(source) => write!(f, "no rule of {source} allows it"),
            Self::NoRules => f.write_str("there are no egress rules"),
        }
    }
}

impl Policy {
    /// Adds a list. `source` names it in messages, such as `annotation x` or `the ceiling of namespace y`.
    pub fn and(mut self, source: &str, text: &str) -> Result<Self, RuleError> {
        self.layers.push(Layer { source: source.to_owned(), rules: RuleSet::parse(text)? });
        Ok(self)
    }

    /// The ports on which this name is allowed. The name may be resolved if there is one.
    pub fn ports(&self, name: &Name) -> PortSet {
        let mut sets = self.layers.iter().map(|layer| layer.rules.ports(name));
        let first = sets.next().unwrap_or_default();
        sets.fold(first, |common, set| common.intersection(&set))
    }

    /// Decides about a connection to a port of a name.
    pub fn decide(&self, name: &Name, port: u16) -> Decision {
        let mut by = None;
        for layer in &self.layers {
            match layer.rules.decide(name, port) {
                Ok(rule) => {
                    by.get_or_insert(rule);
                }
                Err(Some(rule)) => return Decision::Denied(Denied::Rule(rule.to_owned())),
                Err(None) => return Decision::Denied(Denied::NotAllowed(layer.source.clone())),
            }
        }
        match by {
            Some(rule) => Decision::Allowed { rule: rule.to_owned() },
            None => Decision::Denied(Denied::NoRules),
        }
    }

    /// Why this name is not resolved: no port of it is allowed.
    pub fn why_unresolved(&self, name: &Name) -> Denied {
        match self.decide(name, 443) {
            Decision::Denied(denied) => denied,
            Decision::Allowed { rule } => Denied::Rule(rule),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    #[test]
    fn a_policy_without_lists_allows_nothing() {
        assert_eq!(Policy::default().decide(&name("a.b"), 443), Decision::Denied(Denied::NoRules));
        assert!(Policy::default().ports(&name("a.b")).is_empty());
    }

    #[test]
    fn the_first_lists_rule_allows_and_the_narrowing_list_is_named() {
        let policy = Policy::default().and("the template", "*.a.com b.com").unwrap();
        let policy = policy.and("the claim", "x.a.com c.com !z.a.com").unwrap();
        assert_eq!(policy.decide(&name("x.a.com"), 443), Decision::Allowed { rule: "*.a.com".to_owned() });
        let narrowed = Decision::Denied(Denied::NotAllowed("the claim".to_owned()));
        assert_eq!(policy.decide(&name("b.com"), 443), narrowed);
        let missing = Decision::Denied(Denied::NotAllowed("the template".to_owned()));
        assert_eq!(policy.decide(&name("c.com"), 443), missing, "a claim adds nothing");
        assert_eq!(policy.decide(&name("z.a.com"), 443), Decision::Denied(Denied::Rule("!z.a.com".to_owned())));
    }

    proptest! {
        #[test]
        fn another_list_never_widens(
            base in prop::collection::vec("!?(\\*\\.)?[ab](\\.[ab])?(:80|:443|:22)?", 0..5),
            more in prop::collection::vec("!?(\\*\\.)?[ab](\\.[ab])?(:80|:443|:22)?", 0..5),
            host in "[ab](\\.[ab]){0,2}", port in prop::sample::select(vec![22u16, 80, 443]),
        ) {
            let one = Policy::default().and("one", &base.join(" ")).unwrap();
            let two = one.clone().and("two", &more.join(" ")).unwrap();
            let host = name(&host);
            prop_assert!(!two.decide(&host, port).is_allowed() || one.decide(&host, port).is_allowed());
            for policy in [&one, &two] {
                prop_assert_eq!(policy.ports(&host).contains(port), policy.decide(&host, port).is_allowed());
            }
        }
    }
}
