//! Label selectors: `a=b, c!=d, e in (x,y), f notin (z), g, !h, i>3`.

use crate::builtin::names;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { text, at: 0 };
        let mut requirements = Vec::new();
        parser.space();
        while !parser.done() {
            requirements.push(parser.requirement()?);
            parser.space();
            if parser.done() {
                break;
            }
            if !parser.eat(",") {
                return Err(format!("found '{}', expected: ',' or 'end of string'", parser.next_token()));
            }
            parser.space();
            if parser.done() {
                return Err("found '', expected: identifier after ','".to_owned());
            }
        }
        Ok(Self { requirements })
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|r| r.test.holds(label(&r.key)))
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Exists, v) => v.is_some(),
            (Self::Absent, v) => v.is_none(),
            (Self::In(wanted), Some(v)) => wanted.iter().any(|w| w == v),
            (Self::In(_), None) => false,
            (Self::NotIn(unwanted), Some(v)) => !unwanted.iter().any(|w| w == v),
            (Self::NotIn(_), None) => true,
            (Self::Above(bound), v) => v.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *bound),
            (Self::Below(bound), v) => v.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *bound),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn done(&self) -> bool {
        self.at == self.text.len()
    }

    fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// The word or sign that comes next.
    fn next_token(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| c.is_whitespace() || "=!(),<>".contains(c)).unwrap_or(rest.len());
        let sign = rest.chars().next().map_or(0, char::len_utf8);
        &rest[..if end == 0 { sign } else { end }]
    }

    /// Everything up to a space or an operator sign.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| c.is_whitespace() || "=!(),<>".contains(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        if let Some(sign) = ["==", "=", "(", ")", ",", "<", ">"].iter().find(|sign| self.rest().starts_with(**sign)) {
            return Err(format!("found '{sign}', expected: !, identifier, or 'end of string'"));
        }
        let absent = self.eat("!");
        self.space();
        let key = self.word();
        check_key(key)?;
        let key = key.to_owned();
        if absent {
            return Ok(Requirement { key, test: Test::Absent });
        }
        self.space();
        if self.done() || self.rest().starts_with(',') {
            return Ok(Requirement { key, test: Test::Exists });
        }
        let test = self.test()?;
        Ok(Requirement { key, test })
    }

    fn test(&mut self) -> Result<Test, String> {
        if self.eat("!=") {
            return Ok(Test::NotIn(vec![self.value()?]));
        }
        if self.eat("==") || self.eat("=") {
            return Ok(Test::In(vec![self.value()?]));
        }
        if self.eat(">") {
            return self.number().map(Test::Above);
        }
        if self.eat("<") {
            return self.number().map(Test::Below);
        }
        match self.word() {
            "in" => self.values().map(Test::In),
            "notin" => self.values().map(Test::NotIn),
            other => {
                Err(format!("unable to parse requirement: found '{other}', expected: in, notin, =, ==, !=, gt, lt"))
            }
        }
    }

    fn value(&mut self) -> Result<String, String> {
        self.space();
        if self.rest().starts_with(['=', '!', '<', '>', '(']) {
            return Err(format!("unable to parse requirement: found '{}', expected: identifier", self.next_token()));
        }
        let value = self.word();
        check_value(value)?;
        Ok(value.to_owned())
    }

    fn number(&mut self) -> Result<i64, String> {
        self.space();
        let value = self.word();
        value.parse().map_err(|_| {
            format!("unable to parse requirement: values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer")
        })
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        self.space();
        if !self.eat("(") {
            return Err(format!("unable to parse requirement: found '{}' expected: '('", self.next_token()));
        }
        let mut out = Vec::new();
        loop {
            out.push(self.value()?);
            self.space();
            if self.eat(")") {
                return Ok(out);
            }
            if !self.eat(",") {
                let why = "expected: ',', ')' or identifier";
                return Err(format!("unable to parse requirement: found '{}', {why}", self.next_token()));
            }
        }
    }
}

fn check_key(key: &str) -> Result<(), String> {
    match names::qualified_name(key).into_iter().next() {
        None => Ok(()),
        Some(why) => Err(format!("unable to parse requirement: <nil>: Invalid value: {key:?}: {why}")),
    }
}

fn check_value(value: &str) -> Result<(), String> {
    match names::label_value(value).into_iter().next() {
        None => Ok(()),
        Some(why) => Err(format!("unable to parse requirement: values[0]: Invalid value: {value:?}: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        LabelSelector::parse(selector).unwrap().matches(|k| labels.iter().find(|(key, _)| *key == k).map(|(_, v)| *v))
    }

    #[test]
    fn every_operator_selects() {
        let labels = [("app", "web"), ("tier", "2"), ("empty", "")];
        for yes in [
            "",
            "app=web",
            "app==web",
            "app = web",
            "app!=db",
            "missing!=x",
            "app in (web, db)",
            "app in (web,)",
            "app notin (db)",
            "missing notin (db)",
            "app",
            "!missing",
            "tier>1",
            "tier<3",
            "empty=",
            "app=web,tier in (1,2), !missing",
        ] {
            assert!(matches(yes, &labels), "{yes}");
        }
        for no in [
            "app=db",
            "app!=web",
            "missing=x",
            "app in (db)",
            "app notin (web)",
            "!app",
            "missing",
            "tier>2",
            "app=web,missing",
        ] {
            assert!(!matches(no, &labels), "{no}");
        }
    }

    #[test]
    fn broken_selectors_are_refused() {
        for bad in [
            "app=web,",
            ",",
            "=x",
            "app in",
            "app in (",
            "app in web",
            "app ~ x",
            "a b",
            "app=-bad-",
            "a/b/c=d",
            "x>y",
            "!",
        ] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,64}") {
            let _ = LabelSelector::parse(&text);
        }

        #[test]
        fn equality_selects_exactly_its_value(key in "[a-z]{1,8}", value in "[a-z0-9]{1,8}", other in "[a-z0-9]{1,8}") {
            let selector = LabelSelector::parse(&format!("{key}={value}")).unwrap();
            prop_assert_eq!(selector.matches(|k| (k == key).then_some(other.as_str())), value == other);
        }

        #[test]
        fn in_and_notin_are_opposites_for_present_labels(value in "[a-z]{1,3}", set in proptest::collection::vec("[a-z]{1,3}", 1..4)) {
            let list = set.join(",");
            let inside = LabelSelector::parse(&format!("k in ({list})")).unwrap().matches(|_| Some(&value));
            let outside = LabelSelector::parse(&format!("k notin ({list})")).unwrap().matches(|_| Some(&value));
            prop_assert!(inside != outside);
        }
    }
}
