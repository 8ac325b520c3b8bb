//! The W3C trace context that follows a claim to its Sandbox in an annotation.

use std::collections::BTreeMap;

use agent_sandbox_api::{
    keys::{self, annotations, labels},
    v1beta1::Sandbox,
};
use rand::Rng;

/// Whether passes are traced. Off: nothing is read and nothing is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracing {
    pub enabled: bool,
}

/// The trace a pass belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassSpan {
    /// What to store on the object, when it carries no context yet.
    annotation: Option<String>,
}

impl PassSpan {
    /// The annotation value to write, if one is due.
    pub fn annotation(&self) -> Option<String> {
        self.annotation.clone()
    }
}

impl Tracing {
    /// A context for an object that carries none; nothing when it does, or when tracing is off.
    pub fn context_for(self, stored: Option<&str>) -> Option<String> {
        (self.enabled && stored.is_none_or(str::is_empty)).then(new_context)
    }

    /// Joins the trace that the Sandbox names, or begins one that it will name.
    pub fn start(self, name: &'static str, sandbox: &Sandbox) -> PassSpan {
        if !self.enabled {
            return PassSpan::default();
        }
        let stored = sandbox.annotation(annotations::TRACE_CONTEXT).filter(|value| !value.is_empty());
        let annotation = match stored {
            Some(_) => None,
            None => Some(new_context()),
        };
        let context = stored.map(str::to_owned).or_else(|| annotation.clone()).unwrap_or_default();
        let created_by = sandbox.label(labels::CREATED_BY).map(keys::normalised_created_by).unwrap_or_default();
        tracing::debug!(
            span = name,
            sandbox.name = sandbox.name(),
            sandbox.namespace = sandbox.namespace(),
            created_by,
            traceparent = trace_parent(&context).unwrap_or_default(),
            "Traced pass"
        );
        PassSpan { annotation }
    }
}

/// The `traceparent` header in a stored context; `None` when it does not parse.
pub fn trace_parent(context: &str) -> Option<String> {
    serde_json::from_str::<BTreeMap<String, String>>(context).ok()?.remove("traceparent")
}

fn new_context() -> String {
    let mut random = rand::rng();
    let (trace, span): (u128, u64) = (random.next_u64().into(), random.next_u64());
    let trace = (trace << 64) | u128::from(random.next_u64()) | 1;
    format!("{{\"traceparent\":\"00-{trace:032x}-{:016x}-01\"}}", span | 1)
}
