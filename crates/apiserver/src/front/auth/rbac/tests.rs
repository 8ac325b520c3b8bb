//! What roles and bindings grant, and what they do not grant.

use serde_json::json;

use super::*;

fn user(name: &str) -> UserInfo {
    UserInfo {
        username: name.into(),
        groups: vec!["system:authenticated".into(), "devs".into()],
        ..UserInfo::default()
    }
}

fn on(verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> Attributes {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    Attributes {
        verb: verb.into(),
        target: AccessTarget::Resource {
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
        },
    }
}

fn policy() -> Policy {
    Policy::compile(&RbacObjects {
        roles: vec![json!({"metadata": {"namespace": "a", "name": "reader"}, "rules": [
            {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get"]},
        ]})],
        cluster_roles: vec![
            json!({"metadata": {"name": "scaler", "labels": {"part": "yes"}}, "rules": [{"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["*"]}]}),
            json!({"metadata": {"name": "sum"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"part": "yes"}}]}, "rules": null}),
            json!({"metadata": {"name": "metrics"}, "rules": [{"nonResourceURLs": ["/metrics", "/logs/*"], "verbs": ["get"]}]}),
        ],
        role_bindings: vec![
            json!({"metadata": {"namespace": "a", "name": "one"}, "roleRef": {"kind": "Role", "name": "reader"},
                "subjects": [{"kind": "User", "name": "ann"}, {"kind": "ServiceAccount", "name": "bot"}]}),
            json!({"metadata": {"namespace": "b", "name": "two"}, "roleRef": {"kind": "ClusterRole", "name": "sum"},
                "subjects": [{"kind": "Group", "name": "devs"}]}),
            json!({"metadata": {"namespace": "b", "name": "dangling"}, "roleRef": {"kind": "Role", "name": "reader"},
                "subjects": [{"kind": "User", "name": "ann"}]}),
        ],
        cluster_role_bindings: vec![
            json!({"metadata": {"name": "three"}, "roleRef": {"kind": "ClusterRole", "name": "metrics"},
            "subjects": [{"kind": "User", "name": "ann"}]}),
        ],
    })
}

#[test]
fn a_role_applies_in_its_namespace_to_its_subjects() {
    let policy = policy();
    let may = |who: &str, attributes: Attributes| policy.allows(&user(who), &attributes).is_some();
    assert!(may("ann", on("get", "", "pods", "a", "p")));
    assert!(may("ann", on("list", "", "pods/log", "a", "p")));
    assert!(may("system:serviceaccount:a:bot", on("get", "", "pods", "a", "p")));
    assert!(!may("system:serviceaccount:b:bot", on("get", "", "pods", "a", "p")));
    assert!(!may("ann", on("get", "", "pods", "b", "p")), "a role of another namespace");
    assert!(!may("ann", on("list", "", "pods", "", "")), "all namespaces");
    assert!(!may("ann", on("delete", "", "pods", "a", "p")));
    assert!(!may("ann", on("get", "", "pods/exec", "a", "p")), "another subresource");
    assert!(!may("ann", on("get", "apps", "pods", "a", "p")), "another group");
    assert!(!may("bob", on("get", "", "pods", "a", "p")));
}

#[test]
fn resource_names_match_single_objects_and_never_collections() {
    let policy = policy();
    let may = |attributes: Attributes| policy.allows(&user("ann"), &attributes).is_some();
    assert!(may(on("get", "", "secrets", "a", "mine")));
    assert!(!may(on("get", "", "secrets", "a", "other")));
    assert!(!may(on("get", "", "secrets", "a", "")));
}

#[test]
fn aggregation_wildcards_and_paths_work() {
    let policy = policy();
    let path = |path: &str| Attributes { verb: "get".into(), target: AccessTarget::Path(path.into()) };
    assert!(policy.allows(&user("bob"), &on("patch", "apps", "deployments/scale", "b", "d")).is_some());
    assert!(policy.allows(&user("bob"), &on("patch", "apps", "deployments", "b", "d")).is_none());
    assert!(policy.allows(&user("ann"), &path("/logs/x")).is_some());
    assert!(policy.allows(&user("bob"), &path("/metrics")).is_none());
}

#[test]
fn without_bindings_a_user_gets_discovery_and_self_reviews_only() {
    let policy = Policy::compile(&RbacObjects::default());
    let may = |attributes: Attributes| policy.allows(&user("ann"), &attributes).is_some();
    assert!(may(Attributes { verb: "get".into(), target: AccessTarget::Path("/apis/apps/v1".into()) }));
    assert!(may(on("create", "authorization.k8s.io", "selfsubjectaccessreviews", "", "")));
    assert!(!may(on("create", "authorization.k8s.io", "subjectaccessreviews", "", "")));
    assert!(!may(on("list", "", "namespaces", "", "")));
    assert!(
        policy
            .allows(&UserInfo::default(), &Attributes { verb: "get".into(), target: AccessTarget::Path("/api".into()) })
            .is_none()
    );
    assert!(policy.allows(&UserInfo::administrator(), &on("delete", "", "nodes", "", "n")).is_some());
}
