//! Environment variables that a claim adds to its Sandbox, as far as the template allows.

use agent_sandbox_api::template::{ClaimEnvVar, InjectionPolicy};
use serde_json::{Value, json};

use super::cold_start::Refusal;

/// Adds the claim's variables to a Pod spec.
pub(super) fn inject(spec: &mut Value, env: &[ClaimEnvVar], policy: InjectionPolicy) -> Result<(), Refusal> {
    if env.is_empty() {
        return Ok(());
    }
    if policy == InjectionPolicy::Disallowed {
        return Err(Refusal::Env(
            "environment variable injection rejected: environment variable injection is not allowed by the template policy"
                .to_owned(),
        ));
    }
    let container_paths = env.iter().map(|variable| container_path(spec, variable)).collect::<Result<Vec<_>, _>>()?;
    if policy == InjectionPolicy::Allowed {
        refuse_env_from(spec, &container_paths)?;
    }
    // Variables that name their container come before those that mean the first container; each group in the claim's
    // order.
    let mut ordered: Vec<usize> = (0..env.len()).collect();
    ordered.sort_by_key(|index| named(&env[*index]).is_none());
    let template_names: Vec<Vec<String>> =
        container_paths.iter().map(|container_path| names_in(container_path.of(spec))).collect();
    for index in ordered {
        put(container_paths[index].of_mut(spec), &env[index], policy, &template_names[index])?;
    }
    Ok(())
}

/// The position of a container in a Pod spec.
#[derive(Clone, Copy)]
struct ContainerPath {
    list: &'static str,
    index: usize,
}

impl ContainerPath {
    fn of(self, spec: &Value) -> &Value {
        &spec[self.list][self.index]
    }

    fn of_mut(self, spec: &mut Value) -> &mut Value {
        &mut spec[self.list][self.index]
    }
}

fn named(variable: &ClaimEnvVar) -> Option<&str> {
    variable.container_name.as_deref().filter(|name| !name.is_empty())
}

fn container_path(spec: &Value, variable: &ClaimEnvVar) -> Result<ContainerPath, Refusal> {
    let containers = |list| spec.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let found = match named(variable) {
        None => (!containers("containers").is_empty()).then_some(ContainerPath { list: "containers", index: 0 }),
        Some(name) => ["initContainers", "containers"].into_iter().find_map(|list| {
            let index = containers(list).iter().position(|container| container["name"] == name)?;
            Some(ContainerPath { list, index })
        }),
    };
    found.ok_or_else(|| {
        Refusal::Template(format!(
            "target container \"{}\" not found in template for environment variable \"{}\"",
            named(variable).unwrap_or_default(),
            variable.name
        ))
    })
}

/// Rejects containers with `envFrom`: its variables are not known here, so adding one could silently replace them.
fn refuse_env_from(spec: &Value, container_paths: &[ContainerPath]) -> Result<(), Refusal> {
    let uses =
        |container: &Value| container.get("envFrom").and_then(Value::as_array).is_some_and(|from| !from.is_empty());
    match container_paths.iter().map(|container_path| container_path.of(spec)).find(|container| uses(container)) {
        Some(container) => Err(Refusal::Env(format!(
            "environment variable injection rejected: container \"{}\" uses EnvFrom sources; Allowed policy cannot safely prevent overriding EnvFrom-provided variables",
            container["name"].as_str().unwrap_or_default()
        ))),
        None => Ok(()),
    }
}

fn names_in(container: &Value) -> Vec<String> {
    let env = container.get("env").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    env.iter().filter_map(|variable| variable["name"].as_str()).map(str::to_owned).collect()
}

/// Adds or replaces one variable. A variable that the claim itself listed before may always be replaced.
fn put(
    container: &mut Value,
    variable: &ClaimEnvVar,
    policy: InjectionPolicy,
    template_names: &[String],
) -> Result<(), Refusal> {
    let of_template = template_names.contains(&variable.name);
    if of_template && policy == InjectionPolicy::Allowed {
        return Err(Refusal::Template(format!(
            "environment variable override is not allowed by the template policy for variable \"{}\"",
            variable.name
        )));
    }
    if !container["env"].is_array() {
        container["env"] = json!([]);
    }
    let literal = json!({ "name": variable.name, "value": variable.value });
    let env = container["env"].as_array_mut().expect("made an array above");
    match env.iter_mut().find(|entry| entry["name"] == variable.name.as_str()) {
        Some(entry) => *entry = literal,
        None => env.push(literal),
    }
    Ok(())
}
