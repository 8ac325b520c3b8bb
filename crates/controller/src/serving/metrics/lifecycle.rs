//! Counters and latencies of suspend, resume, end and expiry of Sandboxes.

use std::time::Duration;

use agent_sandbox_api::{conditions::Reason, keys::annotations, owners, template::ShutdownPolicy};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::{Histograms, creation_histogram, milliseconds};
use crate::{cache::Sandbox, sandbox::Transition};

/// What each Sandbox-scoped family says about the Sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Origin {
    namespace: String,
    sandbox_template: String,
    owned_by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WithResult {
    namespace: String,
    sandbox_template: String,
    owned_by: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WithReason {
    namespace: String,
    sandbox_template: String,
    owned_by: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WithPolicy {
    namespace: String,
    sandbox_template: String,
    owned_by: &'static str,
    shutdown_policy: &'static str,
}

/// The template that a Sandbox was made from, as a label value.
pub(super) fn template_label(sandbox: &Sandbox) -> &str {
    sandbox.annotation(annotations::TEMPLATE_REF).filter(|name| !name.is_empty()).unwrap_or("unknown")
}

/// The kind that controls a Sandbox, as a label value.
pub(super) fn owner_label(sandbox: &Sandbox) -> &'static str {
    if owners::owning_claim(&sandbox.metadata).is_some() {
        "SandboxClaim"
    } else if owners::owning_pool(&sandbox.metadata).is_some() {
        "SandboxWarmPool"
    } else {
        "None"
    }
}

#[derive(Debug)]
pub(super) struct Lifecycle {
    suspends: Family<WithResult, Counter>,
    suspend_latency: Histograms<Origin>,
    resumes: Family<WithResult, Counter>,
    resume_latency: Histograms<Origin>,
    finished: Family<WithReason, Counter>,
    expired: Family<WithPolicy, Counter>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            suspends: Family::default(),
            suspend_latency: Family::new_with_constructor(creation_histogram),
            resumes: Family::default(),
            resume_latency: Family::new_with_constructor(creation_histogram),
            finished: Family::default(),
            expired: Family::default(),
        }
    }
}

impl Lifecycle {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("agent_sandbox_suspend", "Suspensions by result", self.suspends.clone());
        registry.register(
            "agent_sandbox_suspend_latency_ms",
            "From the first sight of the request to the end of the Pod",
            self.suspend_latency.clone(),
        );
        registry.register("agent_sandbox_resume", "Resumptions by result", self.resumes.clone());
        registry.register(
            "agent_sandbox_resume_latency_ms",
            "From the first sight of the request to readiness",
            self.resume_latency.clone(),
        );
        registry.register("agent_sandbox_finished", "Sandboxes whose Pod ended, by reason", self.finished.clone());
        registry.register("agent_sandbox_expired", "Sandboxes that expired", self.expired.clone());
    }

    /// Counts one step; `took` is the time since the request, where it is known.
    pub(super) fn count(&self, sandbox: &Sandbox, transition: Transition, took: Option<Duration>) {
        let namespace = sandbox.namespace().to_owned();
        let (sandbox_template, owned_by) = (template_label(sandbox).to_owned(), owner_label(sandbox));
        let (family, latency, result) = match transition {
            Transition::SuspendRequested => (&self.suspends, None, "requested"),
            Transition::Suspended => (&self.suspends, Some(&self.suspend_latency), "pod_terminated"),
            Transition::SuspendFailed => (&self.suspends, None, "error"),
            Transition::ResumeRequested => (&self.resumes, None, "requested"),
            Transition::Resumed => (&self.resumes, Some(&self.resume_latency), "ready"),
            Transition::ResumeFailed => (&self.resumes, None, "error"),
            Transition::Finished { succeeded } => {
                let reason = if succeeded { Reason::PodSucceeded } else { Reason::PodFailed }.as_str();
                self.finished.get_or_create(&WithReason { namespace, sandbox_template, owned_by, reason }).inc();
                return;
            }
            Transition::Expired => {
                let shutdown_policy = match sandbox.spec.shutdown_policy.unwrap_or_default() {
                    ShutdownPolicy::Delete => "Delete",
                    ShutdownPolicy::Retain => "Retain",
                };
                let labels = WithPolicy { namespace, sandbox_template, owned_by, shutdown_policy };
                self.expired.get_or_create(&labels).inc();
                return;
            }
        };
        if let Some((latency, took)) = latency.zip(took) {
            let origin = Origin { namespace: namespace.clone(), sandbox_template: sandbox_template.clone(), owned_by };
            latency.get_or_create(&origin).observe(milliseconds(took));
        }
        family.get_or_create(&WithResult { namespace, sandbox_template, owned_by, result }).inc();
    }
}
