//! SandboxClaim: a template and a pool policy on one side, a pool on the other.
//!
//! A claim of v1alpha1 that names no pool maps to the shadow pool of its template, or, once bound to a warm Sandbox,
//! to the pool that Sandbox came from.

use serde_json::{Map, Value, json};

use super::ConversionError;
use super::object::Object;
use crate::groups::{EXTENSIONS_V1ALPHA1, SANDBOX_CLAIM};
use crate::keys::annotations::{V1ALPHA1_CLAIM_STATE, V1BETA1_CLAIM_POOL, V1BETA1_CLAIM_VOLUMES};
use crate::names::{shadow_pool, shadow_pool_template, without_last_segment};

const DEFAULT: &str = "default";
const NONE: &str = "none";

/// v1alpha1 → v1beta1.
pub(super) fn to_hub(object: &mut Object) -> Result<(), ConversionError> {
    object.remove_annotation(V1ALPHA1_CLAIM_STATE);
    let view = View::take(object.spec()?);
    let pool = remembered_pool(object, &view).unwrap_or_else(|| pool_of(&view, object.bound_sandbox(), object.name()));
    object.remove_annotation(V1BETA1_CLAIM_POOL);
    let volumes = object
        .annotation(V1BETA1_CLAIM_VOLUMES)
        .and_then(|text| serde_json::from_str::<Value>(text).ok())
        .filter(Value::is_array);

    let spec = object.spec()?;
    spec.insert("warmPoolRef".to_owned(), json!({ "name": pool }));
    spec.remove("volumeClaimTemplates");
    if let Some(volumes) = volumes {
        spec.insert("volumeClaimTemplates".to_owned(), volumes);
        object.remove_annotation(V1BETA1_CLAIM_VOLUMES);
    }

    let mut saved = Map::new();
    view.put(&mut saved);
    let state = json!({
        "apiVersion": EXTENSIONS_V1ALPHA1,
        "kind": SANDBOX_CLAIM,
        "spec": saved,
        // Our own key, which upstream ignores: it tells whether the pool was edited since, where the pool's name alone
        // would be ambiguous.
        "hub": { "warmPoolRef": { "name": pool } },
    });
    object.set_annotation(V1ALPHA1_CLAIM_STATE, state.to_string())
}

/// v1beta1 → v1alpha1.
pub(super) fn from_hub(object: &mut Object) -> Result<(), ConversionError> {
    let state = object.take_state(V1ALPHA1_CLAIM_STATE);
    let bound = object.bound_sandbox().to_owned();
    let name = object.name().to_owned();

    let spec = object.spec()?;
    let volumes = spec.remove("volumeClaimTemplates").filter(|volumes| !volumes.is_null());
    let pool = spec.remove("warmPoolRef").as_ref().map(name_in).unwrap_or_default().to_owned();
    let view = view_of(&pool, &bound, state.as_ref());
    view.put(spec);

    let leads_back = pool_of(&view, &bound, &name) == pool;
    match leads_back {
        true => object.remove_annotation(V1BETA1_CLAIM_POOL),
        false => {
            let mut memory = json!({ "warmPoolRef": { "name": pool } });
            view.put(memory.as_object_mut().expect("built as an object"));
            object.set_annotation(V1BETA1_CLAIM_POOL, memory.to_string())?;
        }
    }
    match volumes {
        Some(volumes) => object.set_annotation(V1BETA1_CLAIM_VOLUMES, volumes.to_string())?,
        None if object.annotation(V1BETA1_CLAIM_VOLUMES).is_some_and(is_array_text) => {
            object.remove_annotation(V1BETA1_CLAIM_VOLUMES);
        }
        None => {}
    }
    Ok(())
}

/// The v1alpha1 fields that stand in place of a pool reference.
#[derive(PartialEq)]
struct View {
    template_ref: Option<Value>,
    warmpool: Option<Value>,
}

impl View {
    /// Removes the fields from a v1alpha1 spec (or a saved one).
    fn take(spec: &mut Map<String, Value>) -> Self {
        Self { template_ref: spec.remove("sandboxTemplateRef"), warmpool: spec.remove("warmpool") }
    }

    fn put(&self, spec: &mut Map<String, Value>) {
        for (key, value) in [("sandboxTemplateRef", &self.template_ref), ("warmpool", &self.warmpool)] {
            match value {
                Some(value) => spec.insert(key.to_owned(), value.clone()),
                None => spec.remove(key),
            };
        }
    }

    fn template(&self) -> &str {
        self.template_ref.as_ref().map(name_in).unwrap_or_default()
    }

    /// The pool, when the policy is a pool's name.
    fn specific_pool(&self) -> Option<&str> {
        self.warmpool.as_ref().and_then(Value::as_str).filter(|pool| !matches!(*pool, "" | DEFAULT | NONE))
    }
}

/// The pool that a v1alpha1 claim refers to.
fn pool_of(view: &View, bound: &str, claim: &str) -> String {
    match view.specific_pool() {
        Some(pool) => pool.to_owned(),
        None if !bound.is_empty() && bound != claim => without_last_segment(bound).to_owned(),
        None => shadow_pool(view.template()),
    }
}

/// The pool recorded by the conversion to v1alpha1, unless the client has changed template or pool policy since.
fn remembered_pool(object: &Object, view: &View) -> Option<String> {
    let mut memory: Value = serde_json::from_str(object.annotation(V1BETA1_CLAIM_POOL)?).ok()?;
    let memory = memory.as_object_mut()?;
    let pool = name_in(memory.get("warmPoolRef")?).to_owned();
    (View::take(memory) == *view).then_some(pool)
}

/// The v1alpha1 fields for a pool.
fn view_of(pool: &str, bound: &str, state: Option<&Value>) -> View {
    let guess = match shadow_pool_template(pool) {
        Some(template) => View { template_ref: Some(json!({ "name": template })), warmpool: Some(DEFAULT.into()) },
        None => View { template_ref: Some(json!({ "name": pool })), warmpool: Some(pool.into()) },
    };
    let Some(mut saved) = state.and_then(|state| state.get("spec")).and_then(Value::as_object).cloned() else {
        return guess;
    };
    let saved = View::take(&mut saved);
    let recorded = state.and_then(|state| state.get("hub")).and_then(|hub| hub.get("warmPoolRef")).map(name_in);
    let unchanged = match recorded {
        Some(recorded) => pool == recorded,
        None => unchanged_by_name(pool, bound, &saved),
    };
    if unchanged { saved } else { View { template_ref: saved.template_ref, warmpool: Some(pool.into()) } }
}

/// Whether the pool is unchanged since v1alpha1 wrote the claim. Upstream's state does not record the pool, so this
/// compares with the names that the conversion may have given it.
fn unchanged_by_name(pool: &str, bound: &str, saved: &View) -> bool {
    let expected = saved.specific_pool().unwrap_or_else(|| saved.template());
    pool == expected
        || shadow_pool_template(pool) == Some(expected)
        || (!bound.is_empty() && (pool == bound || pool == without_last_segment(bound)))
}

/// The `name` of a reference; empty when there is none.
fn name_in(reference: &Value) -> &str {
    reference.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn is_array_text(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_array())
}
