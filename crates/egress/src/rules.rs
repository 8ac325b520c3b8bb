//! The rule language. A rule is one of
//!
//! ```text
//! pypi.org                    this name, ports 80 and 443
//! *.githubusercontent.com     every name below it, not the name itself
//! *                           every name
//! db.example.com:5432         this port only
//! db.example.com:8000-8010    these ports
//! @python                     the rules of a group
//! !telemetry.example.com      denied, whatever else allows it
//! ```
//!
//! Rules are separated by commas or white space. What no rule allows is denied; the order does not matter.

use std::collections::HashMap;

use crate::groups;
use crate::name::{Name, NameError};
use crate::ports::{PortRange, PortSet};

/// Ports of a rule that names none: HTTP and HTTPS.
const DEFAULT_PORTS: [PortRange; 2] = [PortRange::one(80), PortRange::one(443)];
/// Widest range of ports in a rule. Each port of a resolved name is an entry of the packet filter.
const MAX_RANGE: u16 = 64;
/// Maximum number of rules, those of groups included.
const MAX_RULES: usize = 20_000;
/// Longest rule that is repeated in an error.
const SHOWN: usize = 80;

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("a * may only stand for the first labels, as in *.example.com")]
    Wildcard,
    #[error("the port must be a number between 1 and 65535 or a range of at most 64, as in :443 or :8000-8010")]
    Port,
    #[error("there is no such group; there are {}", groups::names())]
    Group,
    #[error("write the name only, without https://")]
    Scheme,
    #[error("paths are not supported: a rule allows a name and its ports")]
    Path,
    #[error("write a name; addresses are allowed by a NetworkPolicy")]
    Address,
    #[error("there are more than {MAX_RULES} rules")]
    TooMany,
}

/// A rule that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("egress rule {position} (\"{rule}\"): {problem}")]
pub struct RuleError {
    /// The rule as it was written, shortened if it is very long.
    pub rule: String,
    /// Its place in the list, counted from 1.
    pub position: usize,
    #[source]
    pub problem: Problem,
}

/// Ports that a rule allows or denies, and the rule's text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    ports: Vec<PortRange>,
    /// As written; for a rule of a group, the group and the rule.
    text: String,
}

/// Entries by the name they are about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Table {
    exact: HashMap<String, Vec<Entry>>,
    /// Entries of `*.name`, under `name`; those of `*` under the empty text.
    below: HashMap<String, Vec<Entry>>,
}

impl Table {
    /// The entries that match a name. The work depends on the number of its labels, not on the number of rules.
    fn matching<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = &'a Entry> {
        let exact = self.exact.get(name.as_str()).into_iter();
        let below = name.ancestors().skip(1).chain([""]).filter_map(|parent| self.below.get(parent));
        exact.chain(below).flatten()
    }
}

/// A list of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    allow: Table,
    deny: Table,
    count: usize,
}

impl RuleSet {
    /// Reads a list of rules. The first bad one is an error; no rule of such a list is used.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let mut set = Self::default();
        let rules = text.split(|letter: char| letter == ',' || letter.is_whitespace()).filter(|rule| !rule.is_empty());
        for (index, rule) in rules.enumerate() {
            set.add(rule).map_err(|problem| RuleError {
                rule: rule.chars().take(SHOWN).collect(),
                position: index + 1,
                problem,
            })?;
        }
        Ok(set)
    }

    /// Number of rules, those of groups included.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no rule, so that everything is denied.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, rule: &str) -> Result<(), Problem> {
        let (denies, body) = match rule.strip_prefix('!') {
            Some(body) => (true, body),
            None => (false, rule),
        };
        if body.contains("://") {
            return Err(Problem::Scheme);
        }
        if body.contains('/') {
            let address = body.split_once('/').is_some_and(|(host, _)| host.parse::<std::net::IpAddr>().is_ok());
            return Err(if address { Problem::Address } else { Problem::Path });
        }
        if body.starts_with('[') || body.parse::<std::net::IpAddr>().is_ok() {
            return Err(Problem::Address);
        }
        let (pattern, ports) = match body.rsplit_once(':') {
            Some((pattern, ports)) => (pattern, Some(parse_ports(ports)?)),
            None => (body, None),
        };
        let Some(group) = pattern.strip_prefix('@') else {
            let ports = ports.map_or(DEFAULT_PORTS.to_vec(), |range| vec![range]);
            return self.insert(denies, pattern, Entry { ports, text: rule.to_owned() });
        };
        for listed in groups::find(group).ok_or(Problem::Group)?.rules() {
            let (pattern, own) = match listed.rsplit_once(':') {
                Some((pattern, own)) => (pattern, vec![parse_ports(own)?]),
                None => (listed, DEFAULT_PORTS.to_vec()),
            };
            // Ports behind a group's name narrow its rules.
            let ports = match ports {
                None => own,
                Some(wanted) => own
                    .iter()
                    .map(|range| PortRange { first: range.first.max(wanted.first), last: range.last.min(wanted.last) })
                    .filter(|range| range.first <= range.last)
                    .collect(),
            };
            self.insert(denies, pattern, Entry { ports, text: format!("{rule} ({listed})") })?;
        }
        Ok(())
    }

    fn insert(&mut self, denies: bool, pattern: &str, entry: Entry) -> Result<(), Problem> {
        self.count += 1;
        if self.count > MAX_RULES {
            return Err(Problem::TooMany);
        }
        let table = if denies { &mut self.deny } else { &mut self.allow };
        if pattern == "*" {
            table.below.entry(String::new()).or_default().push(entry);
            return Ok(());
        }
        let (list, name) = match pattern.strip_prefix("*.") {
            Some(parent) => (&mut table.below, parent),
            None => (&mut table.exact, pattern),
        };
        if name.contains('*') {
            return Err(Problem::Wildcard);
        }
        let name = Name::parse(name).map_err(|error| match error {
            NameError::Address => Problem::Address,
            other => Problem::Name(other),
        })?;
        list.entry(name.as_str().to_owned()).or_default().push(entry);
        Ok(())
    }

    /// The ports on which this name is allowed.
    pub fn ports(&self, name: &Name) -> PortSet {
        let allowed = self.allow.matching(name).flat_map(|entry| &entry.ports);
        let allowed = allowed.fold(PortSet::default(), |set, range| set.with(*range));
        if allowed.is_empty() {
            return allowed;
        }
        self.deny.matching(name).flat_map(|entry| &entry.ports).fold(allowed, |set, range| set.without(*range))
    }

    /// The rule that allows a name and port: `Ok`; or denies it: `Err`, with `None` when no rule is about it.
    pub fn decide<'a>(&'a self, name: &'a Name, port: u16) -> Result<&'a str, Option<&'a str>> {
        let find =
            |table: &'a Table| table.matching(name).find(|entry| entry.ports.iter().any(|range| range.contains(port)));
        match (find(&self.deny), find(&self.allow)) {
            (Some(entry), _) => Err(Some(&entry.text)),
            (None, Some(entry)) => Ok(&entry.text),
            (None, None) => Err(None),
        }
    }
}

fn parse_ports(text: &str) -> Result<PortRange, Problem> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| digits && *port > 0).ok_or(Problem::Port)
    };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last || last - first >= MAX_RANGE { Err(Problem::Port) } else { Ok(PortRange { first, last }) }
}

#[cfg(test)]
mod tests;
