//! What operators see of the router: Prometheus metrics, the access log, the audit log, W3C trace context, OTLP export.

pub(crate) mod access_log;
pub(crate) mod audit;
pub(crate) mod metrics;
pub(crate) mod otlp;
pub(crate) mod trace;
