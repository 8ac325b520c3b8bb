//! The router's Prometheus metrics. Label values come from enums and from existing namespaces, never from clients.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::error::UpstreamReason;

/// Content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const BUCKETS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0];
/// Maximum number of namespaces with a label if no index limits them.
const MAX_UNVERIFIED_NAMESPACES: usize = 1000;

/// Request methods; a bounded set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MethodLabel {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
    Options,
    Connect,
    Other,
}

impl From<&Method> for MethodLabel {
    fn from(method: &Method) -> Self {
        match *method {
            Method::GET => Self::Get,
            Method::HEAD => Self::Head,
            Method::POST => Self::Post,
            Method::PUT => Self::Put,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            Method::OPTIONS => Self::Options,
            Method::CONNECT => Self::Connect,
            _ => Self::Other,
        }
    }
}

impl MethodLabel {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
            Self::Connect => "CONNECT",
            Self::Other => "OTHER",
        }
    }
}

impl EncodeLabelValue for MethodLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

/// An existing namespace, or `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NamespaceLabel(Option<Arc<str>>);

impl EncodeLabelValue for NamespaceLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0.as_deref().unwrap_or("-"), encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: MethodLabel,
    code: u16,
    sandbox_namespace: NamespaceLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespaceLabels {
    sandbox_namespace: NamespaceLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    sandbox_namespace: NamespaceLabel,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    sandbox_namespace: NamespaceLabel,
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    git_version: &'static str,
    git_commit: &'static str,
    build_date: &'static str,
    go_version: &'static str,
    compiler: &'static str,
    platform: String,
}

#[derive(Clone)]
struct DurationHistogram;

impl MetricConstructor<Histogram> for DurationHistogram {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

/// All metrics of one router.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RequestLabels, Histogram, DurationHistogram>,
    pub(crate) in_flight: Gauge<i64, AtomicI64>,
    upstream_errors: Family<ErrorLabels, Counter>,
    retries: Family<NamespaceLabels, Counter>,
    woken: Family<NamespaceLabels, Counter>,
    invalidations: Family<NamespaceLabels, Counter>,
    decisions: Family<DecisionLabels, Counter>,
    cert_reloads: Family<OutcomeLabels, Counter>,
    unverified_namespaces: Mutex<HashSet<Arc<str>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sandbox_router");
        let this = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(DurationHistogram),
            in_flight: Gauge::default(),
            upstream_errors: Family::default(),
            retries: Family::default(),
            woken: Family::default(),
            invalidations: Family::default(),
            decisions: Family::default(),
            cert_reloads: Family::default(),
            unverified_namespaces: Mutex::default(),
            registry: Registry::default(),
        };
        registry.register("requests", "Requests answered", this.requests.clone());
        registry.register(
            "request_duration_seconds",
            "Time from arrival to the last byte of the answer",
            this.durations.clone(),
        );
        registry.register("inflight_requests", "Requests being served", this.in_flight.clone());
        registry.register("upstream_errors", "Failures on the sandboxes' side", this.upstream_errors.clone());
        registry.register("upstream_retries", "Repeated connection attempts", this.retries.clone());
        registry.register(
            "waited_for_wake",
            "Requests that waited for a suspended sandbox to wake",
            this.woken.clone(),
        );
        registry.register(
            "cache_invalidations",
            "Pods taken out of use after failed dials",
            this.invalidations.clone(),
        );
        registry.register("authz_decisions", "Authorisation decisions", this.decisions.clone());
        registry.register("cert_reloads", "Reloads of the TLS certificate", this.cert_reloads.clone());
        this.create_series();
        let build = Family::<BuildLabels, Gauge>::default();
        build.get_or_create(&BuildLabels::current()).set(1);
        registry.register("build_info", "What is running", build);
        Self { registry, ..this }
    }
}

impl BuildLabels {
    /// `go_version` and `compiler` keep their names because dashboards join on them; the router contains no Go.
    fn current() -> Self {
        Self {
            git_version: env!("CARGO_PKG_VERSION"),
            git_commit: option_env!("AGENT_SANDBOX_GIT_COMMIT").unwrap_or("unknown"),
            build_date: option_env!("AGENT_SANDBOX_BUILD_DATE").unwrap_or("unknown"),
            go_version: "none",
            compiler: "rustc",
            platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

impl Metrics {
    /// Creates series before their first event, so that a zero is not mistaken for a missing metric.
    fn create_series(&self) {
        self.retries.get_or_create(&NamespaceLabels { sandbox_namespace: label(None) }).inc_by(0);
        self.woken.get_or_create(&NamespaceLabels { sandbox_namespace: label(None) }).inc_by(0);
        self.invalidations.get_or_create(&NamespaceLabels { sandbox_namespace: label(None) }).inc_by(0);
        for outcome in ["success", "failure"] {
            self.cert_reloads.get_or_create(&OutcomeLabels { outcome }).inc_by(0);
        }
        for reason in [UpstreamReason::Dial, UpstreamReason::Timeout, UpstreamReason::Eof, UpstreamReason::Other] {
            let labels = ErrorLabels { sandbox_namespace: label(None), reason: reason.as_str() };
            self.upstream_errors.get_or_create(&labels).inc_by(0);
        }
    }

    /// Counts a finished request; `recent` caches the series that the calling worker used last.
    pub(crate) fn request(
        &self,
        recent: &RecentSeries,
        method: MethodLabel,
        code: u16,
        namespace: Option<&Arc<str>>,
        duration: Duration,
    ) {
        let labels = RequestLabels { method, code, sandbox_namespace: label(namespace) };
        recent.with(&labels, self, |series| {
            series.count.inc();
            series.duration.observe(duration.as_secs_f64());
        });
    }

    pub(crate) fn upstream_error(&self, namespace: Option<&Arc<str>>, reason: UpstreamReason) {
        let labels = ErrorLabels { sandbox_namespace: label(namespace), reason: reason.as_str() };
        self.upstream_errors.get_or_create(&labels).inc();
    }

    pub(crate) fn retry(&self, namespace: Option<&Arc<str>>) {
        self.retries.get_or_create(&NamespaceLabels { sandbox_namespace: label(namespace) }).inc();
    }

    pub(crate) fn woken(&self, namespace: Option<&Arc<str>>) {
        self.woken.get_or_create(&NamespaceLabels { sandbox_namespace: label(namespace) }).inc();
    }

    pub(crate) fn invalidation(&self, namespace: Option<&Arc<str>>) {
        self.invalidations.get_or_create(&NamespaceLabels { sandbox_namespace: label(namespace) }).inc();
    }

    pub(crate) fn decision(&self, namespace: Option<&Arc<str>>, allowed: bool) {
        let decision = if allowed { "allow" } else { "deny" };
        self.decisions.get_or_create(&DecisionLabels { sandbox_namespace: label(namespace), decision }).inc();
    }

    pub(crate) fn cert_reload(&self, success: bool) {
        let outcome = if success { "success" } else { "failure" };
        self.cert_reloads.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// The label of a namespace if there is no index: the number of labelled namespaces is bounded.
    pub(crate) fn unverified_namespace(&self, namespace: &str) -> Option<Arc<str>> {
        let mut known = self.unverified_namespaces.lock();
        if let Some(found) = known.get(namespace) {
            return Some(Arc::clone(found));
        }
        if known.len() >= MAX_UNVERIFIED_NAMESPACES {
            return None;
        }
        let name: Arc<str> = namespace.into();
        known.insert(Arc::clone(&name));
        Some(name)
    }

    /// The metrics in text exposition format.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }
}

/// The series that one worker used last. Most requests have the labels of the previous one, and looking a series up
/// costs two locks and two hashes.
#[derive(Default)]
pub(crate) struct RecentSeries(Mutex<Option<Series>>);

struct Series {
    labels: RequestLabels,
    count: Counter,
    duration: Histogram,
}

impl RecentSeries {
    fn with(&self, labels: &RequestLabels, metrics: &Metrics, record: impl FnOnce(&Series)) {
        let mut recent = self.0.lock();
        match &*recent {
            Some(series) if series.labels == *labels => record(series),
            _ => {
                let series = Series {
                    labels: labels.clone(),
                    count: metrics.requests.get_or_create(labels).clone(),
                    duration: metrics.durations.get_or_create(labels).clone(),
                };
                record(recent.insert(series));
            }
        }
    }
}

fn label(namespace: Option<&Arc<str>>) -> NamespaceLabel {
    NamespaceLabel(namespace.cloned())
}
