//! The cluster roles every cluster has, so that a binding to `view` or `edit` works out of the box.
//!
//! `admin`, `edit` and `view` grant what kube-apiserver 1.36 grants on the resources that are served here; a test in
//! `tests/kubernetes` compares the two. In particular none of them may write `status` subresources, quotas, limit ranges or
//! endpoints: those belong to controllers and administrators.

use serde_json::{Map, Value, json};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const READ_WRITE: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const CREATE: &[&str] = &["create"];
const IMPERSONATE: &[&str] = &["impersonate"];

/// Verbs, API groups and resources of one rule.
type Grant = (&'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// Reading, except for what would give the reader further rights (secrets, connections into Pods).
const VIEW: &[Grant] = &[
    (
        READ,
        &[""],
        &[
            "configmaps",
            "endpoints",
            "limitranges",
            "namespaces",
            "namespaces/status",
            "persistentvolumeclaims",
            "persistentvolumeclaims/status",
            "pods",
            "pods/log",
            "pods/status",
            "resourcequotas",
            "resourcequotas/status",
            "serviceaccounts",
            "services",
            "services/status",
        ],
    ),
    (READ, &["", "events.k8s.io"], &["events"]),
    (READ, &["discovery.k8s.io"], &["endpointslices"]),
    (
        READ,
        &["apps"],
        &[
            "daemonsets",
            "daemonsets/status",
            "deployments",
            "deployments/scale",
            "deployments/status",
            "replicasets",
            "replicasets/scale",
            "replicasets/status",
            "statefulsets",
            "statefulsets/scale",
            "statefulsets/status",
        ],
    ),
    (READ, &["policy"], &["poddisruptionbudgets", "poddisruptionbudgets/status"]),
    (READ, &["networking.k8s.io"], &["networkpolicies"]),
];

/// What `edit` has beyond [`VIEW`].
const EDIT: &[Grant] = &[
    (READ, &[""], &["pods/attach", "pods/exec", "pods/portforward", "secrets"]),
    (IMPERSONATE, &[""], &["serviceaccounts"]),
    (
        WRITE,
        &[""],
        &[
            "configmaps",
            "persistentvolumeclaims",
            "pods",
            "pods/attach",
            "pods/exec",
            "pods/portforward",
            "secrets",
            "serviceaccounts",
            "services",
        ],
    ),
    (CREATE, &[""], &["pods/eviction", "serviceaccounts/token"]),
    (WRITE, &["", "events.k8s.io"], &["events"]),
    (
        WRITE,
        &["apps"],
        &[
            "daemonsets",
            "deployments",
            "deployments/scale",
            "replicasets",
            "replicasets/scale",
            "statefulsets",
            "statefulsets/scale",
        ],
    ),
    (WRITE, &["policy"], &["poddisruptionbudgets"]),
    (WRITE, &["networking.k8s.io"], &["networkpolicies"]),
    (READ_WRITE, &["coordination.k8s.io"], &["leases"]),
];

/// What `admin` has beyond [`EDIT`].
const ADMIN: &[Grant] = &[(READ_WRITE, &["rbac.authorization.k8s.io"], &["rolebindings", "roles"])];

/// `cluster-admin`, `admin`, `edit` and `view`, of which the last three aggregate, so that a CRD's author can add to
/// them; and what metrics-server adds to those three.
pub fn cluster_roles() -> Vec<Value> {
    let label = |role: &str| format!("rbac.authorization.k8s.io/aggregate-to-{role}");
    let aggregate = |name: &str, from: &[&str], grants: &[&[Grant]]| {
        let selectors: Vec<Value> = from.iter().map(|role| json!({"matchLabels": {label(role): "true"}})).collect();
        let rules = grants
            .concat()
            .into_iter()
            .map(|(verbs, groups, resources)| json!({"apiGroups": groups, "resources": resources, "verbs": verbs}));
        let mut role = cluster_role(name, rules.collect());
        role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        role
    };
    let mut metrics_reader = cluster_role(
        "system:aggregated-metrics-reader",
        json!([{"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": READ}]),
    );
    metrics_reader["metadata"]["labels"] =
        ["admin", "edit", "view"].iter().map(|role| (label(role), "true".into())).collect::<Map<_, _>>().into();
    vec![
        cluster_role(
            "cluster-admin",
            json!([
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
                {"nonResourceURLs": ["*"], "verbs": ["*"]},
            ]),
        ),
        aggregate("admin", &["admin", "edit", "view"], &[VIEW, EDIT, ADMIN]),
        aggregate("edit", &["edit", "view"], &[VIEW, EDIT]),
        aggregate("view", &["view"], &[VIEW]),
        metrics_reader,
    ]
}

fn cluster_role(name: &str, rules: Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
        "rules": rules,
    })
}
