//! Privilege escalation checks: a user may only grant permissions in roles and bindings that the user has.

use serde_json::Value;

use super::UserInfo;
use super::rbac::{AccessTarget, Attributes, Policy, Rule, rules_of};
use crate::status::ApiError;

const GROUP: &str = "rbac.authorization.k8s.io";
/// Maximum number of combinations of verb, group, resource and name that one write may contain; a real role has a few
/// hundred.
const MAX_COMBINATIONS: usize = 100_000;

/// Fails if `user` may not store `object`, a role or binding; `old` is the object that it replaces.
pub fn check(
    policy: &Policy,
    user: &UserInfo,
    plural: &str,
    old: Option<&Value>,
    object: &Value,
) -> Result<(), ApiError> {
    if user.is_administrator() {
        return Ok(());
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let namespace = text(&object["metadata"]["namespace"]);
    let name = text(&object["metadata"]["name"]);
    let unchanged =
        |members: &[&str]| old.is_some_and(|old| members.iter().all(|member| old.get(*member) == object.get(*member)));
    let (granted, permitted) = match plural {
        "roles" | "clusterroles" => {
            if unchanged(&["rules", "aggregationRule"]) {
                return Ok(());
            }
            let mut rules = rules_of(object);
            if object["aggregationRule"].is_object() {
                // Rules that are aggregated later could grant anything.
                rules.push(everything());
            }
            (rules, is_allowed(policy, user, "escalate", plural, &namespace, &name))
        }
        "rolebindings" | "clusterrolebindings" => {
            if unchanged(&["roleRef", "subjects"]) {
                return Ok(());
            }
            let (kind, role) = (text(&object["roleRef"]["kind"]), text(&object["roleRef"]["name"]));
            let of = if kind == "ClusterRole" { "clusterroles" } else { "roles" };
            let Some(rules) = policy.role_rules(&kind, &namespace, &role) else {
                return Err(ApiError::not_found(GROUP, of, &role));
            };
            (rules.to_vec(), is_allowed(policy, user, "bind", of, &namespace, &role))
        }
        _ => return Ok(()),
    };
    if permitted {
        return Ok(());
    }
    let own = policy.rules_for(user, &namespace);
    match granted.iter().find(|rule| !covered(&own, rule)) {
        None => Ok(()),
        Some(rule) => {
            let shown = serde_json::to_string(rule).unwrap_or_default();
            let why =
                format!("user {:?} is attempting to grant RBAC permissions not currently held: {shown}", user.username);
            Err(ApiError::forbidden(GROUP, plural, &name, &why))
        }
    }
}

fn is_allowed(policy: &Policy, user: &UserInfo, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
    let target = AccessTarget::Resource {
        group: GROUP.into(),
        resource: resource.into(),
        subresource: String::new(),
        namespace: namespace.into(),
        name: name.into(),
    };
    policy.allows(user, &Attributes { verb: verb.into(), target }).is_some()
}

fn everything() -> Rule {
    let star = || vec!["*".to_owned()];
    Rule { verbs: star(), api_groups: star(), resources: star(), ..Rule::default() }
}

/// True if each permission of `wanted` is in a rule of `own`.
fn covered(own: &[Rule], wanted: &Rule) -> bool {
    let names = wanted.resource_names.len().max(1);
    let combinations = [wanted.verbs.len(), wanted.api_groups.len(), wanted.resources.len(), names]
        .iter()
        .try_fold(1usize, |product, length| product.checked_mul(*length));
    if combinations.is_none_or(|count| count > MAX_COMBINATIONS) {
        return false;
    }
    wanted.verbs.iter().all(|verb| {
        let by_path = wanted
            .non_resource_urls
            .iter()
            .all(|url| own.iter().any(|rule| has(&rule.verbs, verb) && has_url(rule, url)));
        let by_resource = wanted.api_groups.iter().all(|group| {
            wanted.resources.iter().all(|resource| {
                let granting = |rule: &&Rule| {
                    has(&rule.verbs, verb) && has(&rule.api_groups, group) && has_resource(rule, resource)
                };
                let named = |name: &String| {
                    own.iter()
                        .filter(granting)
                        .any(|rule| rule.resource_names.is_empty() || rule.resource_names.contains(name))
                };
                match wanted.resource_names.is_empty() {
                    true => own.iter().filter(granting).any(|rule| rule.resource_names.is_empty()),
                    false => wanted.resource_names.iter().all(named),
                }
            })
        });
        by_path && by_resource
    })
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

fn has_resource(rule: &Rule, wanted: &str) -> bool {
    let of_all = wanted.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
    has(&rule.resources, wanted) || of_all.is_some_and(|pattern| rule.resources.contains(&pattern))
}

fn has_url(rule: &Rule, wanted: &str) -> bool {
    rule.non_resource_urls.iter().any(|url| match url.strip_suffix('*') {
        Some(prefix) => wanted.starts_with(prefix),
        None => url == wanted,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::front::auth::rbac::RbacObjects;

    /// Ann may write roles and bindings and read Pods, in namespace `a`.
    fn policy() -> Policy {
        Policy::compile(&RbacObjects {
            roles: vec![
                json!({"metadata": {"namespace": "a", "name": "boss"}, "rules": [
                    {"apiGroups": [GROUP], "resources": ["roles", "rolebindings"], "verbs": ["*"]},
                    {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
                ]}),
                json!({"metadata": {"namespace": "a", "name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
            ],
            cluster_roles: vec![
                json!({"metadata": {"name": "cluster-admin"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}),
            ],
            role_bindings: vec![
                json!({"metadata": {"namespace": "a", "name": "b"}, "roleRef": {"kind": "Role", "name": "boss"}, "subjects": [{"kind": "User", "name": "ann"}]}),
            ],
            cluster_role_bindings: Vec::new(),
        })
    }

    fn ann() -> UserInfo {
        UserInfo { username: "ann".into(), ..UserInfo::default() }
    }

    fn role(rules: Value) -> Value {
        json!({"metadata": {"namespace": "a", "name": "new"}, "rules": rules})
    }

    #[test]
    fn a_role_may_only_grant_permissions_of_its_writer() {
        // `verbs: *` on roles would include `escalate`, so this test lists single verbs.
        let policy = Policy::compile(&RbacObjects {
            roles: vec![json!({"metadata": {"namespace": "a", "name": "boss"}, "rules": [
                {"apiGroups": [GROUP], "resources": ["roles"], "verbs": ["create"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
                {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get"]},
            ]})],
            role_bindings: vec![
                json!({"metadata": {"namespace": "a", "name": "b"}, "roleRef": {"kind": "Role", "name": "boss"}, "subjects": [{"kind": "User", "name": "ann"}]}),
            ],
            ..RbacObjects::default()
        });
        let may = |rules: Value| check(&policy, &ann(), "roles", None, &role(rules)).is_ok();
        assert!(may(json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])));
        assert!(may(
            json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get"]}])
        ));
        assert!(!may(json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}])));
        assert!(!may(json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}])));
        assert!(!may(json!([{"apiGroups": ["*"], "resources": ["pods"], "verbs": ["get"]}])));
        assert!(!may(json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])));
        let old = role(json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]));
        assert!(check(&policy, &ann(), "roles", Some(&old), &old).is_ok(), "unchanged rules are not checked");
        let huge: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        assert!(!may(json!([{"apiGroups": huge, "resources": huge, "verbs": huge}])));
    }

    #[test]
    fn a_binding_may_only_refer_to_a_role_whose_permissions_its_writer_has() {
        let bind = |kind: &str, role: &str| {
            let object = json!({"metadata": {"namespace": "a", "name": "x"}, "roleRef": {"kind": kind, "name": role}, "subjects": [{"kind": "User", "name": "eve"}]});
            check(&policy(), &UserInfo { username: "bob".into(), ..UserInfo::default() }, "rolebindings", None, &object)
                .is_ok()
        };
        assert!(!bind("Role", "reader") && !bind("ClusterRole", "cluster-admin") && !bind("Role", "missing"));
        let object = |kind: &str, role: &str| json!({"metadata": {"namespace": "a", "name": "x"}, "roleRef": {"kind": kind, "name": role}});
        assert!(check(&policy(), &ann(), "rolebindings", None, &object("Role", "reader")).is_ok());
        assert!(check(&policy(), &ann(), "rolebindings", None, &object("ClusterRole", "cluster-admin")).is_err());
        assert!(
            check(&policy(), &UserInfo::administrator(), "rolebindings", None, &object("ClusterRole", "cluster-admin"))
                .is_ok()
        );
    }
}
