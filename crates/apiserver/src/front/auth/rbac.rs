//! Role-based access control: compiles stored roles and bindings into one policy and evaluates it.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::UserInfo;

/// The attributes of a request that rules are matched against.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    pub verb: String,
    pub target: AccessTarget,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessTarget {
    Resource {
        group: String,
        resource: String,
        subresource: String,
        /// Empty for cluster-scoped requests and for all namespaces.
        namespace: String,
        /// Empty for collections.
        name: String,
    },
    Path(String),
}

impl Default for AccessTarget {
    fn default() -> Self {
        Self::Path(String::new())
    }
}

/// A policy rule in the API's JSON form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<String>,
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Rule {
    fn allows(&self, attributes: &Attributes) -> bool {
        let listed = |list: &[String], value: &str| list.iter().any(|item| item == "*" || item == value);
        if !listed(&self.verbs, &attributes.verb) {
            return false;
        }
        match &attributes.target {
            AccessTarget::Path(path) => self.non_resource_urls.iter().any(|url| match url.strip_suffix('*') {
                Some(prefix) => path.starts_with(prefix),
                None => url == path,
            }),
            AccessTarget::Resource { group, resource, subresource, name, .. } => {
                listed(&self.api_groups, group)
                    && self.resources.iter().any(|listed| matches_resource(listed, resource, subresource))
                    && (self.resource_names.is_empty() || (!name.is_empty() && self.resource_names.contains(name)))
            }
        }
    }
}

/// `*` matches everything, `pods` only the objects, `pods/log` one subresource, `*/scale` that of every resource.
fn matches_resource(listed: &str, resource: &str, subresource: &str) -> bool {
    match (listed.split_once('/'), subresource) {
        _ if listed == "*" => true,
        (None, "") => listed == resource,
        (Some((of, sub)), subresource) if !subresource.is_empty() => {
            sub == subresource && (of == "*" || of == resource)
        }
        _ => false,
    }
}

/// The stored objects that a policy is compiled from.
#[derive(Debug, Default)]
pub struct RbacObjects {
    pub roles: Vec<Value>,
    pub cluster_roles: Vec<Value>,
    pub role_bindings: Vec<Value>,
    pub cluster_role_bindings: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
}

impl Subject {
    fn parse(subject: &Value, namespace: &str) -> Option<Self> {
        let name = subject["name"].as_str()?;
        match subject["kind"].as_str()? {
            "User" => Some(Self::User(name.to_owned())),
            "Group" => Some(Self::Group(name.to_owned())),
            "ServiceAccount" => {
                let of = subject["namespace"].as_str().filter(|own| !own.is_empty()).unwrap_or(namespace);
                Some(Self::User(format!("system:serviceaccount:{of}:{name}")))
            }
            _ => None,
        }
    }

    fn matches(&self, user: &UserInfo) -> bool {
        match self {
            Self::User(name) => *name == user.username,
            Self::Group(name) => user.groups.contains(name),
        }
    }
}

#[derive(Debug)]
struct Grant {
    /// `None` for all namespaces and cluster-scoped resources.
    namespace: Option<String>,
    subjects: Vec<Subject>,
    rules: Vec<Rule>,
    /// The binding, for the reason in access reviews.
    source: String,
}

/// All permissions that are granted to users and groups.
#[derive(Debug, Default)]
pub struct Policy {
    grants: Vec<Grant>,
    roles: HashMap<(String, String), Vec<Rule>>,
    cluster_roles: HashMap<String, Vec<Rule>>,
}

impl Policy {
    pub fn compile(objects: &RbacObjects) -> Self {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let namespace = |object: &Value| object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let cluster_roles = aggregate_rules(&objects.cluster_roles);
        let roles: HashMap<(String, String), Vec<Rule>> =
            objects.roles.iter().map(|role| ((namespace(role), name(role)), rules_of(role))).collect();
        let mut grants = vec![authenticated_users(), unauthenticated_users()];
        for binding in &objects.cluster_role_bindings {
            if let Some(rules) = cluster_roles.get(binding["roleRef"]["name"].as_str().unwrap_or_default()) {
                grants.push(grant(binding, None, rules.clone(), format!("ClusterRoleBinding {:?}", name(binding))));
            }
        }
        for binding in &objects.role_bindings {
            let here = namespace(binding);
            let wanted = binding["roleRef"]["name"].as_str().unwrap_or_default().to_owned();
            let rules = match binding["roleRef"]["kind"].as_str() {
                Some("ClusterRole") => cluster_roles.get(&wanted),
                _ => roles.get(&(here.clone(), wanted)),
            };
            if let Some(rules) = rules {
                let source = format!("RoleBinding {:?}", format!("{}/{here}", name(binding)));
                grants.push(grant(binding, Some(here), rules.clone(), source));
            }
        }
        Self { grants, roles, cluster_roles }
    }

    /// The rules of a stored role, including aggregated ones.
    pub fn role_rules(&self, kind: &str, namespace: &str, name: &str) -> Option<&[Rule]> {
        let rules = match kind {
            "ClusterRole" => self.cluster_roles.get(name),
            _ => self.roles.get(&(namespace.to_owned(), name.to_owned())),
        };
        rules.map(Vec::as_slice)
    }

    /// The reason why the request is allowed; `None` if it is not.
    pub fn allows(&self, user: &UserInfo, attributes: &Attributes) -> Option<String> {
        if user.is_administrator() {
            return Some("member of system:masters".into());
        }
        let namespace = match &attributes.target {
            AccessTarget::Resource { namespace, .. } => namespace.as_str(),
            AccessTarget::Path(_) => "",
        };
        self.grants_of(user, namespace)
            .find(|grant| grant.rules.iter().any(|rule| rule.allows(attributes)))
            .map(|grant| format!("RBAC: allowed by {}", grant.source))
    }

    /// All rules that apply to a user in a namespace.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> Vec<Rule> {
        let mut rules: Vec<Rule> = Vec::new();
        if user.is_administrator() {
            rules.push(Rule { verbs: star(), api_groups: star(), resources: star(), ..Rule::default() });
            rules.push(Rule { verbs: star(), non_resource_urls: star(), ..Rule::default() });
        }
        for rule in self.grants_of(user, namespace).flat_map(|grant| &grant.rules) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
        rules
    }

    fn grants_of<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        self.grants.iter().filter(move |grant| {
            grant.namespace.as_deref().is_none_or(|of| of == namespace && !namespace.is_empty())
                && grant.subjects.iter().any(|subject| subject.matches(user))
        })
    }
}

fn star() -> Vec<String> {
    vec!["*".into()]
}

pub(super) fn rules_of(role: &Value) -> Vec<Rule> {
    let rules = role["rules"].as_array().into_iter().flatten();
    rules.filter_map(|rule| Rule::deserialize(rule).ok()).collect()
}

/// The rules of cluster roles by name; an aggregated role also has the rules of every role that its selectors match.
fn aggregate_rules(cluster_roles: &[Value]) -> HashMap<String, Vec<Rule>> {
    let selects = |selector: &Value, role: &Value| {
        let wanted = selector["matchLabels"].as_object();
        wanted.is_some_and(|wanted| {
            !wanted.is_empty() && wanted.iter().all(|(key, value)| role["metadata"]["labels"].get(key) == Some(value))
        })
    };
    let all = cluster_roles.iter().map(|role| {
        let mut rules = rules_of(role);
        for selector in role["aggregationRule"]["clusterRoleSelectors"].as_array().into_iter().flatten() {
            rules.extend(cluster_roles.iter().filter(|other| selects(selector, other)).flat_map(rules_of));
        }
        (role["metadata"]["name"].as_str().unwrap_or_default().to_owned(), rules)
    });
    all.collect()
}

fn grant(binding: &Value, namespace: Option<String>, rules: Vec<Rule>, source: String) -> Grant {
    let subjects = binding["subjects"].as_array().into_iter().flatten();
    let subjects =
        subjects.filter_map(|subject| Subject::parse(subject, namespace.as_deref().unwrap_or_default())).collect();
    Grant { namespace, subjects, rules, source }
}

/// The permissions of every authenticated user: discovery and reviews about themselves.
fn authenticated_users() -> Grant {
    let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
    Grant {
        namespace: None,
        subjects: vec![Subject::Group("system:authenticated".into())],
        rules: vec![
            Rule {
                verbs: list(&["get", "head"]),
                non_resource_urls: list(&[
                    "/api",
                    "/api/*",
                    "/apis",
                    "/apis/*",
                    "/healthz",
                    "/livez",
                    "/openapi",
                    "/openapi/*",
                    "/readyz",
                    "/version",
                    "/version/",
                ]),
                ..Rule::default()
            },
            Rule {
                verbs: list(&["create"]),
                api_groups: list(&["authorization.k8s.io"]),
                resources: list(&["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
                ..Rule::default()
            },
            Rule {
                verbs: list(&["create"]),
                api_groups: list(&["authentication.k8s.io"]),
                resources: list(&["selfsubjectreviews"]),
                ..Rule::default()
            },
        ],
        source: "the rules for every authenticated user".into(),
    }
}

/// The permissions of requests without a token: health checks.
fn unauthenticated_users() -> Grant {
    let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
    Grant {
        namespace: None,
        subjects: vec![Subject::Group("system:unauthenticated".into())],
        rules: vec![Rule {
            verbs: list(&["get", "head"]),
            non_resource_urls: list(&["/healthz", "/livez", "/readyz", "/version"]),
            ..Rule::default()
        }],
        source: "the rules for probes".into(),
    }
}

#[cfg(test)]
mod tests;
