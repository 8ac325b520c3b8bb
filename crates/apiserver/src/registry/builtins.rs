//! The table of built-in resources.

use std::sync::Arc;

use super::descriptor::{Origin, Resource, SelectableField, Subresources, Version};

const ALL_VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const CREATE_ONLY: &[&str] = &["create"];
const READ_ONLY: &[&str] = &["get", "list"];

/// One line of the table below.
struct Row {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    status: bool,
    others: &'static [&'static str],
    fields: &'static [&'static str],
    verbs: &'static [&'static str],
}

const fn row(group: &'static str, version: &'static str, plural: &'static str, kind: &'static str) -> Row {
    Row {
        group,
        version,
        plural,
        kind,
        namespaced: true,
        short: &[],
        categories: &[],
        status: false,
        others: &[],
        fields: &[],
        verbs: ALL_VERBS,
    }
}

impl Row {
    const fn cluster(mut self) -> Self {
        self.namespaced = false;
        self
    }
    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short = names;
        self
    }
    const fn in_all(mut self) -> Self {
        self.categories = &["all"];
        self
    }
    const fn status(mut self) -> Self {
        self.status = true;
        self
    }
    const fn others(mut self, names: &'static [&'static str]) -> Self {
        self.others = names;
        self
    }
    const fn fields(mut self, names: &'static [&'static str]) -> Self {
        self.fields = names;
        self
    }
    const fn metrics(mut self) -> Self {
        self.verbs = READ_ONLY;
        self
    }
    const fn review(mut self) -> Self {
        self.verbs = CREATE_ONLY;
        self.namespaced = false;
        self
    }
}

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const RBAC: &str = "rbac.authorization.k8s.io";

const TABLE: &[Row] = &[
    row("", "v1", "configmaps", "ConfigMap").short(&["cm"]),
    row("", "v1", "endpoints", "Endpoints").short(&["ep"]),
    row("", "v1", "events", "Event").short(&["ev"]).fields(EVENT_FIELDS),
    row("", "v1", "limitranges", "LimitRange").short(&["limits"]),
    row("", "v1", "namespaces", "Namespace")
        .cluster()
        .short(&["ns"])
        .status()
        .others(&["finalize"])
        .fields(&["status.phase"]),
    row("", "v1", "nodes", "Node").cluster().short(&["no"]).status().fields(&["spec.unschedulable"]),
    row("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim").short(&["pvc"]).status(),
    row("", "v1", "persistentvolumes", "PersistentVolume").cluster().short(&["pv"]).status(),
    row("", "v1", "pods", "Pod").short(&["po"]).in_all().status().fields(POD_FIELDS).others(&[
        "attach",
        "binding",
        "ephemeralcontainers",
        "eviction",
        "exec",
        "log",
        "portforward",
        "resize",
    ]),
    row("", "v1", "resourcequotas", "ResourceQuota").short(&["quota"]).status(),
    row("", "v1", "secrets", "Secret").fields(&["type"]),
    row("", "v1", "serviceaccounts", "ServiceAccount").short(&["sa"]).others(&["token"]),
    row("", "v1", "services", "Service").short(&["svc"]).in_all().status().fields(&["spec.clusterIP", "spec.type"]),
    row("apps", "v1", "daemonsets", "DaemonSet").short(&["ds"]).in_all().status(),
    row("apps", "v1", "deployments", "Deployment").short(&["deploy"]).in_all().status().others(&["scale"]),
    row("apps", "v1", "replicasets", "ReplicaSet").short(&["rs"]).in_all().status().others(&["scale"]),
    row("apps", "v1", "statefulsets", "StatefulSet").short(&["sts"]).in_all().status().others(&["scale"]),
    row("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
        .cluster()
        .short(&["crd", "crds"])
        .status(),
    row("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview").review(),
    row("authentication.k8s.io", "v1", "tokenreviews", "TokenReview").review(),
    row("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview").review(),
    row("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview").review(),
    row("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview").review(),
    row("coordination.k8s.io", "v1", "leases", "Lease"),
    row("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    row("events.k8s.io", "v1", "events", "Event").short(&["ev"]),
    row("metrics.k8s.io", "v1beta1", "nodes", "NodeMetrics").cluster().metrics(),
    row("metrics.k8s.io", "v1beta1", "pods", "PodMetrics").metrics(),
    row("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy").short(&["netpol"]),
    row("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass").cluster(),
    row("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget").short(&["pdb"]).status(),
    row(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding").cluster(),
    row(RBAC, "v1", "clusterroles", "ClusterRole").cluster(),
    row(RBAC, "v1", "rolebindings", "RoleBinding"),
    row(RBAC, "v1", "roles", "Role"),
    row("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass").cluster().short(&["pc"]),
    row("storage.k8s.io", "v1", "storageclasses", "StorageClass").cluster().short(&["sc"]),
];

pub(super) fn all() -> Vec<Arc<Resource>> {
    TABLE.iter().map(|row| Arc::new(resource(row))).collect()
}

fn resource(row: &Row) -> Resource {
    let api_version =
        if row.group.is_empty() { row.version.to_owned() } else { format!("{}/{}", row.group, row.version) };
    let alias = row.group == "events.k8s.io";
    let fields = if alias { EVENT_FIELDS } else { row.fields };
    Resource {
        group: row.group.into(),
        plural: row.plural.into(),
        singular: row.kind.to_ascii_lowercase(),
        kind: row.kind.into(),
        list_kind: format!("{}List", row.kind),
        short_names: row.short.iter().map(|s| (*s).into()).collect(),
        categories: row.categories.iter().map(|s| (*s).into()).collect(),
        namespaced: row.namespaced,
        storage: if alias { "/events".into() } else { format!("{}/{}", row.group, row.plural).into() },
        storage_version: if alias { "v1".into() } else { api_version.clone() },
        versions: vec![Version {
            name: row.version.into(),
            api_version,
            served: true,
            deprecation_warning: None,
            verbs: row.verbs,
            subresources: Subresources { status: row.status, scale: None, others: row.others },
            columns: Vec::new(),
            schema: None,
            openapi: None,
        }],
        origin: if alias { Origin::Alias } else { Origin::BuiltIn },
        fields: fields.iter().map(|f| builtin_field(f)).collect(),
    }
}

fn builtin_field(name: &'static str) -> SelectableField {
    let mut field = SelectableField::at(name);
    match name {
        "spec.hostNetwork" | "spec.unschedulable" => field.default = "false",
        "source" => field.path = vec!["source".into(), "component".into()],
        _ => {}
    }
    field
}
