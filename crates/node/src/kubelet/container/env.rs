//! Resolves the environment of a container from literals, ConfigMaps, Secrets and the downward API. Pure.

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, Pod, PodSpec};
use ordered::OrderedMap;
use thiserror::Error;

use crate::kubelet::container::expand::expand;
use crate::kubelet::downward_api::{self, Addresses, FieldPathError};
use crate::kubelet::references::{Sources, config_map_value, secret_value};
use crate::kubelet::resources::{self, Allocatable, ResourceFieldError};

/// Inputs of the resolution besides the container.
#[derive(Clone, Copy, Debug)]
pub struct EnvContext<'a> {
    pub pod: &'a Pod,
    pub spec: &'a PodSpec,
    pub sources: &'a Sources,
    pub addresses: &'a Addresses,
    pub node: &'a Allocatable,
}

/// A resolved environment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Environment {
    pub variables: Vec<(String, String)>,
    /// Keys of `envFrom` objects that were left out because they cannot be variable names; reported as an event.
    pub skipped: Vec<String>,
}

impl Environment {
    pub fn get(&self, name: &str) -> Option<String> {
        self.variables.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
    }
}

/// Why a container cannot be configured (`CreateContainerConfigError`).
#[derive(Debug, Error, Eq, PartialEq)]
pub enum EnvError {
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    #[error("secret {0:?} not found")]
    NoSecret(String),
    #[error("couldn't find key {key} in ConfigMap {name}")]
    NoConfigMapKey { name: String, key: String },
    #[error("couldn't find key {key} in Secret {name}")]
    NoSecretKey { name: String, key: String },
    #[error("environment variable {0:?} takes its value from a file, which this node does not support")]
    FileKey(String),
    #[error(transparent)]
    Field(#[from] FieldPathError),
    #[error(transparent)]
    Resource(#[from] ResourceFieldError),
}

/// Resolves everything the container declares. Later definitions override earlier ones, and `env` overrides `envFrom`.
/// `service_variables` come first, so that everything the container declares overrides them.
pub fn resolve(
    container: &Container,
    context: EnvContext<'_>,
    service_variables: Vec<(String, String)>,
) -> Result<Environment, EnvError> {
    let mut map = OrderedMap::default();
    for (name, value) in service_variables {
        map.insert(name, value);
    }
    let mut skipped = Vec::new();
    add_env_from(container, context.sources, &mut map, &mut skipped)?;
    for variable in container.env.iter().flatten() {
        if let Some(value) = value_of(variable, container, context, &map)? {
            map.insert(variable.name.clone(), value);
        }
    }
    Ok(Environment { variables: map.into_pairs(), skipped })
}

fn add_env_from(
    container: &Container,
    sources: &Sources,
    map: &mut OrderedMap,
    skipped: &mut Vec<String>,
) -> Result<(), EnvError> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let mut pairs: Vec<(String, Vec<u8>)> = Vec::new();
        if let Some(reference) = &from.config_map_ref {
            match sources.config_maps.get(&reference.name) {
                Some(found) => {
                    pairs.extend(found.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes())))
                }
                None if reference.optional == Some(true) => {}
                None => return Err(EnvError::NoConfigMap(reference.name.clone())),
            }
        }
        if let Some(reference) = &from.secret_ref {
            match sources.secrets.get(&reference.name) {
                Some(found) => pairs.extend(found.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()))),
                None if reference.optional == Some(true) => {}
                None => return Err(EnvError::NoSecret(reference.name.clone())),
            }
        }
        for (key, value) in pairs {
            let name = format!("{prefix}{key}");
            match String::from_utf8(value) {
                Ok(value) if is_variable_name(&name) && !value.contains('\0') => map.insert(name, value),
                _ => skipped.push(name),
            }
        }
    }
    Ok(())
}

/// Whether a name is printable ASCII without `=`, which environment blocks can carry and shells read correctly.
fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=')
}

fn value_of(
    variable: &EnvVar,
    container: &Container,
    context: EnvContext<'_>,
    map: &OrderedMap,
) -> Result<Option<String>, EnvError> {
    match &variable.value_from {
        None => Ok(Some(expand(variable.value.as_deref().unwrap_or_default(), |n| map.get(n)))),
        Some(source) => value_from(variable, source, container, context),
    }
}

fn value_from(
    variable: &EnvVar,
    source: &EnvVarSource,
    container: &Container,
    context: EnvContext<'_>,
) -> Result<Option<String>, EnvError> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if let Some(field) = &source.field_ref {
        return Ok(Some(downward_api::field(context.pod, &field.field_path, context.addresses)?));
    }
    if let Some(selector) = &source.resource_field_ref {
        return Ok(Some(resources::field(context.spec, container, selector, context.node)?));
    }
    if let Some(reference) = &source.config_map_key_ref {
        let optional = reference.optional == Some(true);
        return match context.sources.config_maps.get(&reference.name) {
            None if optional => Ok(None),
            None => Err(EnvError::NoConfigMap(reference.name.clone())),
            Some(found) => match config_map_value(found, &reference.key) {
                Some(value) => Ok(Some(text(value))),
                None if optional => Ok(None),
                None => Err(EnvError::NoConfigMapKey { name: reference.name.clone(), key: reference.key.clone() }),
            },
        };
    }
    if let Some(reference) = &source.secret_key_ref {
        let optional = reference.optional == Some(true);
        return match context.sources.secrets.get(&reference.name) {
            None if optional => Ok(None),
            None => Err(EnvError::NoSecret(reference.name.clone())),
            Some(found) => match secret_value(found, &reference.key) {
                Some(value) => Ok(Some(text(value))),
                None if optional => Ok(None),
                None => Err(EnvError::NoSecretKey { name: reference.name.clone(), key: reference.key.clone() }),
            },
        };
    }
    match &source.file_key_ref {
        Some(reference) if reference.optional != Some(true) => Err(EnvError::FileKey(variable.name.clone())),
        _ => Ok(None),
    }
}

/// A map that keeps first-insertion order; environments are small, so a vector is enough.
mod ordered {
    #[derive(Debug, Default)]
    pub(super) struct OrderedMap(Vec<(String, String)>);

    impl OrderedMap {
        pub(super) fn get(&self, name: &str) -> Option<String> {
            self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
        }

        pub(super) fn insert(&mut self, name: String, value: String) {
            match self.0.iter_mut().find(|(n, _)| *n == name) {
                Some(slot) => slot.1 = value,
                None => self.0.push((name, value)),
            }
        }

        pub(super) fn into_pairs(self) -> Vec<(String, String)> {
            self.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::resources::quantity::Milli;
    use serde_json::json;

    fn run(container: serde_json::Value, sources: serde_json::Value) -> Result<Environment, EnvError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "1"}},
            "spec": {"containers": [container]}}))
        .unwrap();
        let spec = pod.spec.as_ref().unwrap();
        let mut read = Sources::default();
        for map in sources["configMaps"].as_array().into_iter().flatten() {
            let map: k8s_openapi::api::core::v1::ConfigMap = serde_json::from_value(map.clone()).unwrap();
            read.config_maps.insert(map.metadata.name.clone().unwrap(), map);
        }
        for secret in sources["secrets"].as_array().into_iter().flatten() {
            let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(secret.clone()).unwrap();
            read.secrets.insert(secret.metadata.name.clone().unwrap(), secret);
        }
        let addresses = Addresses { pod_ips: vec!["10.0.0.9".into()], host_ips: vec!["192.0.2.1".into()] };
        let node = Allocatable { cpu: Milli(2000), memory: Milli(4_000_000), ephemeral_storage: Milli(0) };
        resolve(
            &spec.containers[0],
            EnvContext { pod: &pod, spec, sources: &read, addresses: &addresses, node: &node },
            vec![],
        )
    }

    fn pairs(environment: &Environment) -> Vec<(&str, &str)> {
        environment.variables.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect()
    }

    #[test]
    fn every_kind_of_source_is_resolved_in_order() {
        let environment = run(
            json!({"name": "a", "resources": {"limits": {"cpu": "2"}},
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}],
                "env": [
                    {"name": "LIT", "value": "x"},
                    {"name": "REF", "value": "$(LIT)-$(P_k)-$(LATER)"},
                    {"name": "LATER", "value": "l"},
                    {"name": "CM", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
                    {"name": "SEC", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    {"name": "token", "value": "overridden"},
                    {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": true}}}]}),
            json!({"configMaps": [{"metadata": {"name": "c"}, "data": {"k": "v", "bad=name": "z"}}],
                   "secrets": [{"metadata": {"name": "s"}, "data": {"token": "aHVzaA=="}}]}),
        )
        .unwrap();
        assert_eq!(
            pairs(&environment),
            [
                ("P_k", "v"),
                ("token", "overridden"),
                ("LIT", "x"),
                ("REF", "x-v-$(LATER)"),
                ("LATER", "l"),
                ("CM", "v"),
                ("SEC", "hush"),
                ("IP", "10.0.0.9"),
                ("CPU", "2"),
            ]
        );
        assert_eq!(environment.skipped, ["P_bad=name"]);
    }

    #[test]
    fn a_missing_required_source_is_an_error_that_names_it() {
        let none = json!({});
        let with = |env: serde_json::Value| json!({"name": "a", "env": [{"name": "X", "valueFrom": env}]});
        assert_eq!(
            run(with(json!({"configMapKeyRef": {"name": "c", "key": "k"}})), none.clone()),
            Err(EnvError::NoConfigMap("c".into()))
        );
        assert_eq!(
            run(with(json!({"secretKeyRef": {"name": "s", "key": "k"}})), none.clone()),
            Err(EnvError::NoSecret("s".into()))
        );
        assert_eq!(
            run(
                with(json!({"configMapKeyRef": {"name": "c", "key": "k"}})),
                json!({"configMaps": [{"metadata": {"name": "c"}}]})
            ),
            Err(EnvError::NoConfigMapKey { name: "c".into(), key: "k".into() })
        );
        assert_eq!(
            run(json!({"name": "a", "envFrom": [{"secretRef": {"name": "s"}}]}), none.clone()),
            Err(EnvError::NoSecret("s".into()))
        );
        assert!(run(with(json!({"fieldRef": {"fieldPath": "spec.bogus"}})), none).is_err());
    }
}
