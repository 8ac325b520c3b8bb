//! Prometheus metrics of the controller. Names and labels are upstream's: dashboards and autoscalers read them.
//!
//! Label values come from small sets or from names of templates and pools, never from ids or error texts.

mod lifecycle;
mod sandboxes;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use self::{
    lifecycle::Lifecycle,
    sandboxes::{Pools, Queues, Sandboxes},
};
use crate::{
    cache::{ReconcilerKind, Sandbox, Store},
    sandbox::Transition,
};

/// Buckets of the claim startup latencies, in milliseconds.
const STARTUP_BUCKETS: [f64; 15] = [
    100.0, 250.0, 500.0, 750.0, 1000.0, 1250.0, 1500.0, 2000.0, 2500.0, 5000.0, 10_000.0, 30_000.0, 60_000.0,
    120_000.0, 240_000.0,
];
/// Buckets of the Sandbox creation latency, in milliseconds.
const CREATION_BUCKETS: [f64; 14] = [
    50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0, 60_000.0, 120_000.0, 240_000.0, 300_000.0,
    600_000.0,
];
/// Buckets of a pass's duration, in seconds: controller-runtime's range.
const PASS_BUCKETS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0];

/// How a pass ended, as controller-runtime names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassResult {
    Success,
    RequeueAfter,
    Error,
}

impl PassResult {
    fn label(self) -> &'static str {
        match self {
            PassResult::Success => "success",
            PassResult::RequeueAfter => "requeue_after",
            PassResult::Error => "error",
        }
    }
}

/// A claim that got its Sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClaimCreated {
    pub namespace: String,
    pub sandbox_template: String,
    /// `warm` or `cold`.
    pub launch_type: &'static str,
    pub warmpool_name: String,
    /// `ready` or `not_ready`.
    pub pod_condition: &'static str,
    pub created_by: &'static str,
}

/// A claim that became Ready for the first time; a duration that is not known is not observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimReady {
    pub namespace: String,
    /// `warm`, `cold` or `unknown`.
    pub launch_type: &'static str,
    pub sandbox_template: String,
    /// Since an admission webhook saw the claim.
    pub since_webhook: Option<Duration>,
    /// Since a controller saw the claim.
    pub since_controller: Option<Duration>,
    /// Since the client's request.
    pub since_client: Option<Duration>,
    /// From the Sandbox's creation to its readiness.
    pub sandbox_creation: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Launch {
    launch_type: &'static str,
    sandbox_template: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespacedLaunch {
    namespace: String,
    launch_type: &'static str,
    sandbox_template: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PassLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabel {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lease {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookCall {
    webhook: &'static str,
    code: u16,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

fn startup_histogram() -> Histogram {
    Histogram::new(STARTUP_BUCKETS)
}

fn creation_histogram() -> Histogram {
    Histogram::new(CREATION_BUCKETS)
}

fn pass_histogram() -> Histogram {
    Histogram::new(PASS_BUCKETS)
}

pub struct Metrics {
    registry: Registry,
    claim_creations: Family<ClaimCreated, Counter>,
    startup_since_webhook: Histograms<Launch>,
    startup_since_controller: Histograms<Launch>,
    startup_since_client: Histograms<Launch>,
    sandbox_creation: Histograms<NamespacedLaunch>,
    lifecycle: Lifecycle,
    passes: Family<PassLabels, Counter>,
    pass_errors: Family<ControllerLabel, Counter>,
    pass_panics: Family<ControllerLabel, Counter>,
    pass_seconds: Histograms<ControllerLabel>,
    active_workers: Family<ControllerLabel, Gauge>,
    max_workers: Family<ControllerLabel, Gauge>,
    requests: Family<RequestLabels, Counter>,
    leading: Family<Lease, Gauge>,
    webhook_calls: Family<WebhookCall, Counter>,
    certificate_reads: Counter,
    certificate_errors: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            claim_creations: Family::default(),
            startup_since_webhook: Family::new_with_constructor(startup_histogram),
            startup_since_controller: Family::new_with_constructor(startup_histogram),
            startup_since_client: Family::new_with_constructor(startup_histogram),
            sandbox_creation: Family::new_with_constructor(creation_histogram),
            lifecycle: Lifecycle::default(),
            passes: Family::default(),
            pass_errors: Family::default(),
            pass_panics: Family::default(),
            pass_seconds: Family::new_with_constructor(pass_histogram),
            active_workers: Family::default(),
            max_workers: Family::default(),
            requests: Family::default(),
            leading: Family::default(),
            webhook_calls: Family::default(),
            certificate_reads: Counter::default(),
            certificate_errors: Counter::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    /// Metrics that also report, at each scrape, what the store holds.
    pub fn with_store(store: &Arc<Store>) -> Self {
        let mut metrics = Self::default();
        metrics.registry.register_collector(Box::new(Sandboxes(Arc::downgrade(store))));
        metrics.registry.register_collector(Box::new(Pools(Arc::downgrade(store))));
        metrics.registry.register_collector(Box::new(Queues(Arc::downgrade(store))));
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        let mut claim =
            |name: &str, help: &str, family: &Histograms<Launch>| registry.register(name, help, family.clone());
        claim(
            "agent_sandbox_claim_startup_latency_ms",
            "From admission to the claim's first readiness",
            &self.startup_since_webhook,
        );
        claim(
            "agent_sandbox_claim_controller_startup_latency_ms",
            "From the controller's first sight to the claim's first readiness",
            &self.startup_since_controller,
        );
        claim(
            "agent_sandbox_client_claim_startup_latency_ms",
            "From the client's request to the claim's first readiness",
            &self.startup_since_client,
        );
        registry.register(
            "agent_sandbox_creation_latency_ms",
            "From creation to readiness of the Sandbox",
            self.sandbox_creation.clone(),
        );
        self.lifecycle.register(registry);
        registry.register("agent_sandbox_claim_creation", "Sandboxes given to claims", self.claim_creations.clone());
        registry.register("controller_runtime_reconcile", "Passes by result", self.passes.clone());
        registry.register("controller_runtime_reconcile_errors", "Failed passes", self.pass_errors.clone());
        registry.register("controller_runtime_reconcile_panics", "Passes that panicked", self.pass_panics.clone());
        registry.register("controller_runtime_reconcile_time_seconds", "Duration of passes", self.pass_seconds.clone());
        registry.register("controller_runtime_active_workers", "Passes under way", self.active_workers.clone());
        registry.register(
            "controller_runtime_max_concurrent_reconciles",
            "Most passes at a time",
            self.max_workers.clone(),
        );
        registry.register("rest_client_requests", "Requests to the API server", self.requests.clone());
        registry.register("leader_election_master_status", "Whether this process leads", self.leading.clone());
        registry.register(
            "controller_runtime_webhook_requests",
            "Conversion requests by status",
            self.webhook_calls.clone(),
        );
        registry.register("certwatcher_read_certificate", "Certificates loaded", self.certificate_reads.clone());
        registry.register(
            "certwatcher_read_certificate_errors",
            "Certificates that failed to load",
            self.certificate_errors.clone(),
        );
        let build: Family<Vec<(&'static str, String)>, Gauge> = Family::default();
        build.get_or_create(&build_labels()).set(1);
        registry.register("agent_sandbox_build_info", "What this program was built from", build);
    }

    /// The metrics in OpenMetrics text format.
    pub fn render(&self) -> String {
        let mut page = String::new();
        encode(&mut page, &self.registry).expect("writing into a string cannot fail");
        page
    }

    pub fn claim_created(&self, labels: &ClaimCreated) {
        self.claim_creations.get_or_create(labels).inc();
    }

    /// Counts a step in the life of a Sandbox; `took` is the time since it was asked for, where that is known.
    pub fn sandbox_changed(&self, sandbox: &Sandbox, transition: Transition, took: Option<Duration>) {
        self.lifecycle.count(sandbox, transition, took);
    }

    pub fn claim_ready(&self, ready: &ClaimReady) {
        let launch = Launch { launch_type: ready.launch_type, sandbox_template: ready.sandbox_template.clone() };
        for (family, took) in [
            (&self.startup_since_webhook, ready.since_webhook),
            (&self.startup_since_controller, ready.since_controller),
            (&self.startup_since_client, ready.since_client),
        ] {
            if let Some(took) = took {
                family.get_or_create(&launch).observe(milliseconds(took));
            }
        }
        if let Some(took) = ready.sandbox_creation {
            let labels = NamespacedLaunch {
                namespace: ready.namespace.clone(),
                launch_type: ready.launch_type,
                sandbox_template: ready.sandbox_template.clone(),
            };
            self.sandbox_creation.get_or_create(&labels).observe(milliseconds(took));
        }
    }

    pub fn workers_started(&self, reconciler: ReconcilerKind, most: usize) {
        let controller = reconciler.controller_name();
        self.max_workers.get_or_create(&ControllerLabel { controller }).set(i64::try_from(most).unwrap_or(i64::MAX));
        for result in [PassResult::Success, PassResult::RequeueAfter, PassResult::Error] {
            drop(self.passes.get_or_create(&PassLabels { controller, result: result.label() }));
        }
        drop(self.pass_errors.get_or_create(&ControllerLabel { controller }));
        drop(self.pass_panics.get_or_create(&ControllerLabel { controller }));
    }

    pub fn pass_started(&self, reconciler: ReconcilerKind) {
        self.active_workers.get_or_create(&ControllerLabel { controller: reconciler.controller_name() }).inc();
    }

    pub fn pass_finished(&self, reconciler: ReconcilerKind, result: PassResult, took: Duration) {
        let controller = reconciler.controller_name();
        self.active_workers.get_or_create(&ControllerLabel { controller }).dec();
        self.passes.get_or_create(&PassLabels { controller, result: result.label() }).inc();
        self.pass_seconds.get_or_create(&ControllerLabel { controller }).observe(took.as_secs_f64());
        if result == PassResult::Error {
            self.pass_errors.get_or_create(&ControllerLabel { controller }).inc();
        }
    }

    pub fn pass_panicked(&self, reconciler: ReconcilerKind) {
        self.pass_panics.get_or_create(&ControllerLabel { controller: reconciler.controller_name() }).inc();
    }

    /// Counts a finished request; without a status it got no response.
    pub fn request_finished(&self, method: &http::Method, status: Option<http::StatusCode>) {
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.as_str().to_owned());
        let labels = RequestLabels { code, method: method.to_string(), host: "kubernetes".to_owned() };
        self.requests.get_or_create(&labels).inc();
    }

    pub fn set_leading(&self, lease: &str, leads: bool) {
        self.leading.get_or_create(&Lease { name: lease.to_owned() }).set(i64::from(leads));
    }

    pub fn webhook_called(&self, status: http::StatusCode) {
        self.webhook_calls.get_or_create(&WebhookCall { webhook: "/convert", code: status.as_u16() }).inc();
    }

    pub fn certificate_read(&self, succeeded: bool) {
        if succeeded { &self.certificate_reads } else { &self.certificate_errors }.inc();
    }
}

/// Whole milliseconds, as upstream observes them.
fn milliseconds(took: Duration) -> f64 {
    took.as_secs_f64().mul_add(1000.0, 0.0).trunc()
}

/// Labels of the build; upstream's six keys, with our own toolchain in the two that name one.
fn build_labels() -> Vec<(&'static str, String)> {
    let known = |value: Option<&str>| value.unwrap_or("unknown").to_owned();
    vec![
        ("git_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("git_commit", known(option_env!("AGENT_SANDBOX_GIT_COMMIT"))),
        ("build_date", known(option_env!("AGENT_SANDBOX_BUILD_DATE"))),
        ("go_version", "rust".to_owned()),
        ("compiler", "rustc".to_owned()),
        ("platform", format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)),
    ]
}

/// A store that may have been dropped by the time of a scrape.
type WeakStore = Weak<Store>;

#[cfg(test)]
mod tests;
