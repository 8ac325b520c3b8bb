//! What one object counts against the quotas of its namespace.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{
    Amount,
    amount::{Amounts, amounts},
    pod_resources::{self, Side},
};
use crate::registry::Resource;

/// The resources that quotas know, by how their objects are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tracked {
    Pods,
    Services,
    Claims,
    /// All others: only the number of objects.
    Other {
        count: String,
        /// The short name of the number, for the kinds that had one before `count/…` existed.
        alias: Option<&'static str>,
    },
}

/// Prefix of the names for numbers of objects.
const COUNT: &str = "count/";
const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";

impl Tracked {
    /// How objects of a resource are counted; `None` for those that no quota counts.
    pub(super) fn of(resource: &Resource) -> Option<Self> {
        if !resource.namespaced || &*resource.storage == "/events" {
            return None;
        }
        Some(match &*resource.storage {
            "/pods" => Self::Pods,
            "/services" => Self::Services,
            "/persistentvolumeclaims" => Self::Claims,
            storage => Self::Other {
                count: format!("{COUNT}{}", resource.qualified()),
                alias: ["configmaps", "resourcequotas", "secrets"]
                    .into_iter()
                    .find(|plural| storage.strip_prefix('/') == Some(*plural)),
            },
        })
    }

    /// True if a quota on `name` limits objects of this kind.
    pub(super) fn matches(&self, name: &str) -> bool {
        let one_of = |names: &[&str]| names.contains(&name);
        match self {
            Self::Pods => {
                one_of(&["count/pods", "pods"])
                    || is_compute(name)
                    || name.starts_with("hugepages-")
                    || is_extended_request(name)
            }
            Self::Services => one_of(&["count/services", "services", "services.nodeports", "services.loadbalancers"]),
            Self::Claims => {
                let by_class = |what: &str| name.strip_suffix(what).is_some_and(|class| class.ends_with(STORAGE_CLASS));
                one_of(&["count/persistentvolumeclaims", "persistentvolumeclaims", "requests.storage"])
                    || by_class("requests.storage")
                    || by_class("persistentvolumeclaims")
            }
            Self::Other { count, alias } => name == count || *alias == Some(name),
        }
    }
}

/// The plural and group in a name such as `count/sandboxes.agents.x-k8s.io` or `secrets`: the resource that it counts.
/// `None` for all names that are about Pods, Services and claims.
pub(super) fn counted_resource(name: &str) -> Option<(&str, &str)> {
    match name.strip_prefix(COUNT) {
        Some(qualified) => Some(qualified.split_once('.').unwrap_or((qualified, ""))),
        None => matches!(name, "configmaps" | "resourcequotas" | "secrets").then_some((name, "")),
    }
}

/// Compute resources of Pods, with and without prefix.
fn is_compute(name: &str) -> bool {
    let bare = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
    matches!(bare, "cpu" | "memory" | "ephemeral-storage")
}

/// `requests.` of huge pages, or of a resource that is not Kubernetes' own, such as `requests.nvidia.com/gpu`.
fn is_extended_request(name: &str) -> bool {
    name.strip_prefix("requests.").is_some_and(|rest| rest.starts_with("hugepages-") || is_extended(rest))
}

fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// What an object counts, and what scopes of a quota look at.
#[derive(Debug, Default)]
pub(super) struct Charge {
    /// Counted as long as the object exists.
    pub(super) object: Amounts,
    /// Counted only while a Pod is alive.
    compute: Amounts,
    /// When `compute` stops to count: a Pod that should have ended is not charged for, however long it takes.
    pub(super) until: Option<Timestamp>,
    pub(super) facts: ScopeFacts,
}

/// The properties of an object that scopes select by.
#[derive(Debug, Default)]
pub(super) struct ScopeFacts {
    /// False for kinds that no scope selects.
    pub(super) is_pod: bool,
    pub(super) terminating: bool,
    pub(super) best_effort: bool,
    pub(super) cross_namespace_affinity: bool,
    pub(super) priority_class: Option<String>,
    pub(super) is_claim: bool,
    pub(super) volume_attributes_classes: Vec<String>,
}

impl Charge {
    pub(super) fn of(tracked: &Tracked, object: &Value) -> Self {
        match tracked {
            Tracked::Pods => Self::pod(object),
            Tracked::Services => Self::service(object),
            Tracked::Claims => Self::claim(object),
            Tracked::Other { .. } => Self::other(tracked),
        }
    }

    /// The charge of any object whose kind is only counted.
    pub(super) fn other(tracked: &Tracked) -> Self {
        let Tracked::Other { count, alias } = tracked else { return Self::default() };
        let names = [Some(count.as_str()), *alias];
        Self {
            object: names.into_iter().flatten().map(|name| (name.to_owned(), Amount::ONE)).collect(),
            ..Self::default()
        }
    }

    /// All amounts at the time `now`.
    pub(super) fn amounts(&self, now: Timestamp) -> impl Iterator<Item = (&String, &Amount)> {
        let alive = self.until.is_none_or(|until| now <= until);
        self.object.iter().chain(self.compute.iter().filter(move |_| alive))
    }

    fn pod(pod: &Value) -> Self {
        let (spec, meta) = (&pod["spec"], &pod["metadata"]);
        let finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let compute = if finished {
            Amounts::new()
        } else {
            let requests = pod_resources::total_with_overhead(spec, Side::Requests);
            compute_usage(&requests, &pod_resources::total_with_overhead(spec, Side::Limits))
        };
        let deleted = meta["deletionTimestamp"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
        let until = deleted.zip(meta["deletionGracePeriodSeconds"].as_i64()).map(|(time, grace)| {
            // As in Kubernetes, the grace period counts once more after the end that the deletion was marked with.
            time.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX)
        });
        Self {
            object: [("count/pods".to_owned(), Amount::ONE)].into(),
            compute,
            until,
            facts: ScopeFacts {
                is_pod: true,
                terminating: spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0),
                best_effort: pod["status"]["qosClass"] == "BestEffort",
                cross_namespace_affinity: uses_other_namespaces(&spec["affinity"]),
                priority_class: spec["priorityClassName"].as_str().filter(|n| !n.is_empty()).map(str::to_owned),
                ..ScopeFacts::default()
            },
        }
    }

    fn service(service: &Value) -> Self {
        let spec = &service["spec"];
        let ports = || spec["ports"].as_array().into_iter().flatten();
        let (node_ports, balancers) = match spec["type"].as_str() {
            Some("NodePort") => (ports().count(), 0),
            Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == false => {
                (ports().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count(), 1)
            }
            Some("LoadBalancer") => (ports().count(), 1),
            _ => (0, 0),
        };
        let object = [
            ("count/services", Amount::ONE),
            ("services", Amount::ONE),
            ("services.nodeports", Amount::count(node_ports)),
            ("services.loadbalancers", Amount::count(balancers)),
        ];
        Self { object: object.map(|(name, amount)| (name.to_owned(), amount)).into(), ..Self::default() }
    }

    fn claim(claim: &Value) -> Self {
        let (spec, status) = (&claim["spec"], &claim["status"]);
        let mut object = Amounts::new();
        object.insert("count/persistentvolumeclaims".into(), Amount::ONE);
        object.insert("persistentvolumeclaims".into(), Amount::ONE);
        let old_class = &claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"];
        let class = old_class.as_str().or_else(|| spec["storageClassName"].as_str()).filter(|class| !class.is_empty());
        let asked = Amount::of_json(&spec["resources"]["requests"]["storage"]);
        let given = Amount::of_json(&status["allocatedResources"]["storage"]);
        let storage = asked.map(|asked| given.map_or(asked, |given| given.max(asked)).rounded_up());
        object.extend(storage.map(|amount| ("requests.storage".to_owned(), amount)));
        if let Some(class) = class {
            object.insert(format!("{class}{STORAGE_CLASS}persistentvolumeclaims"), Amount::ONE);
            object.extend(storage.map(|amount| (format!("{class}{STORAGE_CLASS}requests.storage"), amount)));
        }
        let classes = [
            &spec["volumeAttributesClassName"],
            &status["currentVolumeAttributesClassName"],
            &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
        ];
        let classes = classes.into_iter().filter_map(Value::as_str).filter(|name| !name.is_empty());
        Self {
            object,
            facts: ScopeFacts {
                is_claim: true,
                volume_attributes_classes: classes.map(str::to_owned).collect(),
                ..ScopeFacts::default()
            },
            ..Self::default()
        }
    }
}

/// The names under which quotas count requests and limits of a Pod or of one of its containers.
fn compute_usage(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut usage: Amounts = [("pods".to_owned(), Amount::ONE)].into();
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(amount) = requests.get(name) {
            usage.insert(name.to_owned(), *amount);
            usage.insert(format!("requests.{name}"), *amount);
        }
        if let Some(amount) = limits.get(name) {
            usage.insert(format!("limits.{name}"), *amount);
        }
    }
    for (name, amount) in requests {
        if name.starts_with("hugepages-") {
            usage.insert(name.clone(), *amount);
            usage.insert(format!("requests.{name}"), *amount);
        } else if is_extended(name) {
            usage.insert(format!("requests.{name}"), *amount);
        }
    }
    usage
}

/// Resources on which a quota may depend that each container has to specify, but some do not.
pub(super) fn unspecified(required: &[&str], pod: &Value) -> Option<String> {
    const MUST_BE_SET: [&str; 6] = ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];
    let spec = &pod["spec"];
    if pod_resources::has_pod_level(spec) {
        return None;
    }
    let mut missing = Vec::new();
    for name in MUST_BE_SET.into_iter().filter(|name| required.contains(name)) {
        let lists = ["containers", "initContainers"];
        let all = lists.into_iter().flat_map(|list| pod_resources::containers(spec, list));
        let mut without: Vec<&str> = all
            .filter(|container| {
                let resources = &container["resources"];
                !compute_usage(&amounts(&resources["requests"]), &amounts(&resources["limits"])).contains_key(name)
            })
            .map(|container| container["name"].as_str().unwrap_or_default())
            .collect();
        without.sort_unstable();
        if !without.is_empty() {
            missing.push(format!("{name} for: {}", without.join(",")));
        }
    }
    (!missing.is_empty()).then(|| format!("must specify {}", missing.join("; ")))
}

/// True if a Pod's affinity names other namespaces.
fn uses_other_namespaces(affinity: &Value) -> bool {
    let crosses = |term: &Value| {
        term["namespaces"].as_array().is_some_and(|list| !list.is_empty()) || term["namespaceSelector"].is_object()
    };
    ["podAffinity", "podAntiAffinity"].into_iter().map(|kind| &affinity[kind]).any(|rules| {
        let terms = |key: &str| rules[key].as_array().into_iter().flatten();
        terms("requiredDuringSchedulingIgnoredDuringExecution").any(crosses)
            || terms("preferredDuringSchedulingIgnoredDuringExecution").any(|term| crosses(&term["podAffinityTerm"]))
    })
}
