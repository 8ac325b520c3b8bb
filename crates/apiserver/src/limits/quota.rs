//! One ResourceQuota: its hard limits, its scopes, and the check of a new or changed object against it.

use serde_json::Value;

use super::{
    amount::{Amounts, amounts},
    charge::{Charge, ScopeFacts, Tracked},
};

/// A parsed ResourceQuota.
#[derive(Debug)]
pub(crate) struct Quota {
    pub(super) name: String,
    pub(super) hard: Amounts,
    scopes: Vec<Scope>,
}

/// One requirement of `scopes` or `scopeSelector`.
#[derive(Debug)]
struct Scope {
    name: String,
    operator: String,
    values: Vec<String>,
}

impl Quota {
    pub(super) fn parse(quota: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
        let spec = &quota["spec"];
        let simple = list(&spec["scopes"]).into_iter().map(|name| Scope {
            name,
            operator: "Exists".to_owned(),
            values: Vec::new(),
        });
        let expressions = spec["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
        let selected = expressions.map(|requirement| Scope {
            name: text(&requirement["scopeName"]),
            operator: text(&requirement["operator"]),
            values: list(&requirement["values"]),
        });
        Self {
            name: text(&quota["metadata"]["name"]),
            hard: amounts(&spec["hard"]),
            scopes: simple.chain(selected).collect(),
        }
    }

    /// The limited names that objects of a kind count against.
    pub(super) fn names<'a>(&'a self, tracked: &'a Tracked) -> impl Iterator<Item = &'a str> {
        self.hard.keys().map(String::as_str).filter(|name| tracked.matches(name))
    }

    /// True if all scopes select the object.
    pub(super) fn selects(&self, charge: &Charge) -> bool {
        self.scopes.iter().all(|scope| scope.selects(&charge.facts))
    }

    /// An error if `requested` on top of `used` exceeds the limits.
    pub(super) fn check(&self, requested: &Amounts, used: &Amounts) -> Result<(), String> {
        let used_of = |name: &str| used.get(name).copied().unwrap_or_default();
        let exceeded: Vec<&str> = requested
            .iter()
            .filter(|(name, amount)| self.hard.get(*name).is_some_and(|most| used_of(name) + **amount > *most))
            .map(|(name, _)| name.as_str())
            .collect();
        if exceeded.is_empty() {
            return Ok(());
        }
        let show = |amount: &dyn Fn(&str) -> String| {
            exceeded.iter().map(|name| format!("{name}={}", amount(name))).collect::<Vec<_>>().join(",")
        };
        Err(format!(
            "exceeded quota: {}, requested: {}, used: {}, limited: {}",
            self.name,
            show(&|name| requested[name].to_string()),
            show(&|name| used_of(name).to_string()),
            show(&|name| self.hard[name].to_string()),
        ))
    }
}

impl Scope {
    fn selects(&self, facts: &ScopeFacts) -> bool {
        if self.name == "VolumeAttributesClass" {
            return facts.is_claim && self.selects_class(&facts.volume_attributes_classes);
        }
        facts.is_pod
            && match self.name.as_str() {
                "Terminating" => facts.terminating,
                "NotTerminating" => !facts.terminating,
                "BestEffort" => facts.best_effort,
                "NotBestEffort" => !facts.best_effort,
                "CrossNamespacePodAffinity" => facts.cross_namespace_affinity,
                "PriorityClass" => self.selects_class(facts.priority_class.as_slice()),
                _ => false,
            }
    }

    fn selects_class(&self, classes: &[String]) -> bool {
        let listed = |class: &String| self.values.contains(class);
        match self.operator.as_str() {
            "Exists" => !classes.is_empty(),
            "DoesNotExist" => classes.is_empty(),
            "In" => classes.iter().any(listed),
            "NotIn" => classes.is_empty() || classes.iter().any(|class| !listed(class)),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn quota(spec: Value) -> Quota {
        Quota::parse(&json!({ "metadata": { "name": "q" }, "spec": spec }))
    }

    #[test]
    fn an_excess_names_what_was_requested_used_and_limited() {
        let quota = quota(json!({ "hard": { "pods": "1", "requests.cpu": "1", "requests.memory": "1Gi" } }));
        let read = |list: Value| amounts(&list);
        let requested = read(json!({ "pods": "1", "requests.cpu": "800m", "requests.memory": "64Mi" }));
        assert_eq!(quota.check(&requested, &Amounts::new()), Ok(()));
        assert_eq!(
            quota.check(&requested, &requested).unwrap_err(),
            "exceeded quota: q, requested: pods=1,requests.cpu=800m, used: pods=1,requests.cpu=800m, limited: pods=1,requests.cpu=1"
        );
    }

    #[test]
    fn scopes_select_pods_by_their_properties() {
        let pod = |spec: Value, class: &str| {
            Charge::of(&Tracked::Pods, &json!({ "spec": spec, "status": { "qosClass": class } }))
        };
        let plain = || pod(json!({}), "BestEffort");
        let limited = || pod(json!({ "activeDeadlineSeconds": 5 }), "Burstable");
        let important = || pod(json!({ "priorityClassName": "high" }), "Burstable");
        let scoped = |scope: &str| quota(json!({ "hard": {}, "scopes": [scope] }));
        assert!(scoped("BestEffort").selects(&plain()) && !scoped("BestEffort").selects(&limited()));
        assert!(scoped("Terminating").selects(&limited()) && scoped("NotTerminating").selects(&plain()));
        let service = Charge::of(&Tracked::Services, &json!({ "spec": {} }));
        assert!(!scoped("NotBestEffort").selects(&service), "scopes select only Pods");
        let by_class = |operator: &str, values: Value| {
            let requirement = json!({ "scopeName": "PriorityClass", "operator": operator, "values": values });
            quota(json!({ "hard": {}, "scopeSelector": { "matchExpressions": [requirement] } }))
        };
        for (operator, values, with, without) in [
            ("In", json!(["high"]), true, false),
            ("In", json!(["low"]), false, false),
            ("NotIn", json!(["high"]), false, true),
            ("Exists", json!([]), true, false),
            ("DoesNotExist", json!([]), false, true),
        ] {
            let quota = by_class(operator, values);
            assert_eq!((quota.selects(&important()), quota.selects(&plain())), (with, without), "{operator}");
        }
    }
}
