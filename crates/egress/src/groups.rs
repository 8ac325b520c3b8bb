//! Named groups of rules, such as `@python`. Each is a file with its sources in `groups/`.

/// A named group.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub name: &'static str,
    /// The file: rules, one per line, and comments that begin with `#`.
    text: &'static str,
}

/// All groups.
pub const GROUPS: [Group; 5] = [
    Group { name: "debian", text: include_str!("../groups/debian.txt") },
    Group { name: "github", text: include_str!("../groups/github.txt") },
    Group { name: "node", text: include_str!("../groups/node.txt") },
    Group { name: "python", text: include_str!("../groups/python.txt") },
    Group { name: "rust", text: include_str!("../groups/rust.txt") },
];

impl Group {
    /// The rules, without `!` and without other groups.
    pub fn rules(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    }
}

pub(crate) fn find(name: &str) -> Option<Group> {
    GROUPS.into_iter().find(|group| group.name == name)
}

/// The names of all groups, for messages.
pub(crate) fn names() -> String {
    GROUPS.map(|group| format!("@{}", group.name)).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Name, RuleSet};

    #[test]
    fn every_group_is_valid_and_has_sources() {
        for group in GROUPS {
            let set = RuleSet::parse(&format!("@{}", group.name)).unwrap();
            assert_eq!(set.len(), group.rules().count(), "{}", group.name);
            assert!(group.text.contains("# Source: https://"), "{}", group.name);
            assert!(!group.rules().any(|rule| rule.starts_with(['!', '@']) || rule == "*"), "{}", group.name);
        }
    }

    #[test]
    fn groups_contain_what_their_programs_connect_to() {
        for (group, name) in [
            ("python", "files.pythonhosted.org"),
            ("python", "pypi.org"),
            ("node", "registry.npmjs.org"),
            ("rust", "static.crates.io"),
            ("debian", "deb.debian.org"),
            ("github", "objects.githubusercontent.com"),
        ] {
            let set = RuleSet::parse(&format!("@{group}")).unwrap();
            assert!(set.ports(&Name::parse(name).unwrap()).contains(443), "{group} {name}");
        }
    }
}
