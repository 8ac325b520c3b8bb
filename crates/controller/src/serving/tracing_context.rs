//! Spans of passes, and the W3C trace context that is passed from a claim to its Sandbox in an annotation.
//!
//! With tracing off nothing is read and nothing is written. With tracing on each pass is a span in the trace that the
//! object's annotation names; an object without one gets the context of the pass that first saw it. A span ends, and is
//! exported, when its pass ends, whatever the result.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use agent_sandbox_api::keys::{self, annotations, labels};
use agent_sandbox_telemetry::{
    ExportSettings, Service, SettingError, Spans, TraceParent,
    messages::{Event, INTERNAL_SPAN, KeyValue, STATUS_ERROR, Span, Status},
    unix_nanos,
};

use crate::cache::{ObjectMetadata, Pod};

/// Timeout for exporting the last spans when the controller stops.
pub const FLUSH: Duration = Duration::from_secs(5);

/// The export settings from OpenTelemetry's environment variables.
pub fn export_settings(read: impl Fn(&str) -> Option<String>) -> Result<ExportSettings, Vec<SettingError>> {
    let service = Service {
        name: "agent-sandbox-controller".to_owned(),
        scope: "agent-sandbox-controller",
        version: env!("CARGO_PKG_VERSION"),
        attributes: Vec::new(),
    };
    ExportSettings::from_environment(service, read)
}

/// Starts spans; by default tracing is off.
#[derive(Clone, Debug, Default)]
pub struct Tracing(Option<Arc<Spans>>);

impl Tracing {
    pub fn to(spans: Arc<Spans>) -> Self {
        Self(Some(spans))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts the span of a pass over an object: joins the trace that the object names, or begins one that it will
    /// name. `kind` is the prefix of the attributes' names.
    pub fn start(&self, name: &'static str, kind: &str, object: &impl ObjectMetadata) -> PassSpan {
        let Some(spans) = &self.0 else { return PassSpan::default() };
        let stored = object.annotation(annotations::TRACE_CONTEXT).filter(|value| !value.is_empty());
        let parent = stored.and_then(trace_parent);
        if stored.is_some() && parent.is_none() {
            tracing::debug!(context = stored, "An unreadable trace context is ignored");
        }
        let mut context = TraceParent::span_under(parent.as_ref(), true);
        context.sampled = spans.settings().sampler.samples(context.trace_id, parent.map(|parent| parent.sampled));
        let key = object.key();
        let mut attributes = vec![
            KeyValue::text(&format!("{kind}.name"), &key.name),
            KeyValue::text(&format!("{kind}.namespace"), &key.namespace),
        ];
        if let Some(created_by) = object.label(labels::CREATED_BY) {
            attributes.push(KeyValue::text(labels::CREATED_BY, keys::normalised_created_by(created_by)));
        }
        let annotation = stored.is_none().then(|| format!("{{\"traceparent\":\"{context}\"}}"));
        let mut span = PassSpan::open(spans.clone(), name, context, parent.as_ref());
        span.attributes(attributes);
        span.annotation = annotation;
        span
    }
}

/// The `traceparent` in a stored context; `None` when there is no readable one.
pub fn trace_parent(context: &str) -> Option<TraceParent> {
    serde_json::from_str::<BTreeMap<String, String>>(context).ok()?.remove("traceparent")?.parse().ok()
}

/// An open span; dropping it ends it. With tracing off it is empty.
#[derive(Debug, Default)]
pub struct PassSpan {
    open: Option<Open>,
    /// The annotation value to store on the object, when it carries no context yet.
    annotation: Option<String>,
}

#[derive(Debug)]
struct Open {
    spans: Arc<Spans>,
    context: TraceParent,
    span: Span,
}

impl PassSpan {
    fn open(spans: Arc<Spans>, name: &'static str, context: TraceParent, parent: Option<&TraceParent>) -> Self {
        let span = Span {
            trace_id: context.trace_id.to_vec(),
            span_id: context.span_id.to_vec(),
            parent_span_id: parent.map_or_else(Vec::new, |parent| parent.span_id.to_vec()),
            name: name.to_owned(),
            kind: INTERNAL_SPAN,
            start_time_unix_nano: unix_nanos(),
            ..Span::default()
        };
        Self { open: Some(Open { spans, context, span }), annotation: None }
    }

    /// The annotation value to write, if one is due.
    pub fn annotation(&self) -> Option<&str> {
        self.annotation.as_deref()
    }

    /// A child span for a part of this pass.
    pub fn child(&self, name: &'static str) -> PassSpan {
        self.open.as_ref().map_or_else(PassSpan::default, |parent| {
            let context = TraceParent::span_under(Some(&parent.context), parent.context.sampled);
            PassSpan::open(parent.spans.clone(), name, context, Some(&parent.context))
        })
    }

    fn attributes(&mut self, attributes: Vec<KeyValue>) {
        if let Some(open) = &mut self.open {
            open.span.attributes.extend(attributes);
        }
    }

    /// Adds a span event with the Pod's phase.
    pub fn pod_observed(&mut self, name: &'static str, pod: &Pod) {
        if let Some(open) = self.open.as_mut().filter(|open| open.context.sampled) {
            let pod_name = &pod.metadata.key.name;
            open.span.events.push(Event {
                time_unix_nano: unix_nanos(),
                name: name.to_owned(),
                attributes: vec![KeyValue::text("pod.Name", pod_name), KeyValue::text("pod.Phase", &pod.status.phase)],
            });
        }
    }

    /// Marks the span as failed.
    pub fn failed(&mut self, message: &str) {
        if let Some(open) = &mut self.open {
            open.span.status = Some(Status { code: STATUS_ERROR, message: message.to_owned() });
        }
    }
}

impl Drop for PassSpan {
    fn drop(&mut self) {
        if let Some(Open { spans, context, mut span }) = self.open.take()
            && context.sampled
        {
            span.end_time_unix_nano = unix_nanos();
            spans.submit(span);
        }
    }
}

#[cfg(test)]
mod tests;
