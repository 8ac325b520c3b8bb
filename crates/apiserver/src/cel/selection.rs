//! Which parts of `self` and `oldSelf` a rule reads. Only these are converted to CEL values, so that a rule about one
//! field does not cost a copy of the whole object.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};

/// A part of a value, by escaped member names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selection {
    Everything,
    /// Only these members. For a member with an empty selection, only its presence matters.
    Members(BTreeMap<String, Selection>),
}

impl Default for Selection {
    fn default() -> Self {
        Self::Members(BTreeMap::new())
    }
}

impl Selection {
    /// The selection of a member; `None` if the rule does not read it.
    pub(super) fn member(&self, escaped: &str) -> Option<&Self> {
        match self {
            Self::Everything => Some(self),
            Self::Members(members) => members.get(escaped),
        }
    }

    /// True if only the presence of the member matters.
    pub(super) fn is_presence(&self) -> bool {
        matches!(self, Self::Members(members) if members.is_empty())
    }

    /// Adds the parts of `self` and `oldSelf` that `expr` reads.
    pub(super) fn add(&mut self, expr: &IdedExpr) {
        match &expr.expr {
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => {
                if is_root(name) {
                    *self = Self::Everything;
                }
            }
            Expr::Select(select) => match path(expr) {
                Some(path) => self.insert(&path, select.test),
                None => self.add(&select.operand),
            },
            Expr::Call(call) => call.target.iter().map(|t| &**t).chain(&call.args).for_each(|e| self.add(e)),
            Expr::List(list) => list.elements.iter().for_each(|e| self.add(e)),
            Expr::Map(map) => map.entries.iter().for_each(|e| self.add_entry(&e.expr)),
            Expr::Struct(literal) => literal.entries.iter().for_each(|e| self.add_entry(&e.expr)),
            Expr::Comprehension(loops) => {
                for part in [&loops.iter_range, &loops.accu_init, &loops.loop_cond, &loops.loop_step, &loops.result] {
                    self.add(part);
                }
            }
        }
    }

    fn add_entry(&mut self, entry: &EntryExpr) {
        match entry {
            EntryExpr::StructField(field) => self.add(&field.value),
            EntryExpr::MapEntry(pair) => {
                self.add(&pair.key);
                self.add(&pair.value);
            }
        }
    }

    fn insert(&mut self, path: &[&str], presence_only: bool) {
        let Self::Members(members) = self else { return };
        match path {
            [] => {
                if !presence_only {
                    *self = Self::Everything;
                }
            }
            [first, rest @ ..] => members.entry((*first).to_owned()).or_default().insert(rest, presence_only),
        }
    }
}

fn is_root(name: &str) -> bool {
    matches!(name, "self" | "oldSelf")
}

/// `self.a.b` as `[a, b]`; `None` for anything else.
fn path(expr: &IdedExpr) -> Option<Vec<&str>> {
    match &expr.expr {
        Expr::Ident(name) => is_root(name).then(Vec::new),
        Expr::Select(select) => {
            let mut path = path(&select.operand)?;
            path.push(&select.field);
            Some(path)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kube_cel::cel::Program;

    use super::*;

    fn selection(rule: &str) -> Selection {
        let mut selection = Selection::default();
        selection.add(Program::compile(rule).unwrap().expression());
        selection
    }

    #[test]
    fn a_rule_selects_only_the_members_it_reads() {
        let both = selection("has(self.list) == has(oldSelf.list) && (!has(self.list) || self.list == oldSelf.list)");
        assert_eq!(both, Selection::Members(BTreeMap::from([("list".into(), Selection::Everything)])));
        let deep = selection("self.a.b > 1 && has(self.a.c)");
        let below = BTreeMap::from([("b".into(), Selection::Everything), ("c".into(), Selection::default())]);
        assert_eq!(deep, Selection::Members(BTreeMap::from([("a".into(), Selection::Members(below))])));
    }

    #[test]
    fn a_rule_that_uses_the_whole_value_selects_everything() {
        for rule in ["self == oldSelf", "self.all(k, k != 'x')", "'x' in self", "self['x'] == 1", "size(self) < 3"] {
            assert_eq!(selection(rule), Selection::Everything, "{rule}");
        }
    }
}
