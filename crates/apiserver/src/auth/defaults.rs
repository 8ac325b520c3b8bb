//! The cluster roles every cluster has, so that a binding to `view` or `edit` works out of the box.

use serde_json::{Value, json};

/// `cluster-admin`, `admin`, `edit` and `view`. The last three aggregate, so a CRD's author can add to them.
pub fn cluster_roles() -> Vec<Value> {
    let label = |role: &str| format!("rbac.authorization.k8s.io/aggregate-to-{role}");
    let aggregate = |name: &str, from: &[&str], rules: Value| {
        let selectors: Vec<Value> = from.iter().map(|role| json!({"matchLabels": {label(role): "true"}})).collect();
        let mut role = cluster_role(name, rules);
        role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        role
    };
    vec![
        cluster_role(
            "cluster-admin",
            json!([
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
                {"nonResourceURLs": ["*"], "verbs": ["*"]},
            ]),
        ),
        aggregate("admin", &["admin", "edit", "view"], json!([workload(WRITE), secrets(WRITE), roles()])),
        aggregate("edit", &["edit", "view"], json!([workload(WRITE), secrets(WRITE)])),
        aggregate("view", &["view"], json!([workload(READ)])),
    ]
}

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn cluster_role(name: &str, rules: Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
        "rules": rules,
    })
}

fn workload(verbs: &[&str]) -> Value {
    let mut resources = vec![
        "configmaps",
        "daemonsets",
        "deployments",
        "endpoints",
        "endpointslices",
        "events",
        "limitranges",
        "networkpolicies",
        "persistentvolumeclaims",
        "poddisruptionbudgets",
        "pods",
        "pods/log",
        "pods/status",
        "replicasets",
        "resourcequotas",
        "serviceaccounts",
        "services",
        "statefulsets",
    ];
    if verbs == WRITE {
        resources.extend([
            "pods/attach",
            "pods/exec",
            "pods/portforward",
            "pods/eviction",
            "serviceaccounts/token",
            "deployments/scale",
        ]);
    }
    json!({
        "apiGroups": ["", "apps", "discovery.k8s.io", "events.k8s.io", "networking.k8s.io", "policy"],
        "resources": resources,
        "verbs": verbs,
    })
}

/// Reading secrets gives their bearer's rights away, so `view` does not.
fn secrets(verbs: &[&str]) -> Value {
    json!({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs})
}

fn roles() -> Value {
    json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["rolebindings", "roles"], "verbs": WRITE})
}
