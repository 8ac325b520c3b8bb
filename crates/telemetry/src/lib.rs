//! Spans over OTLP/gRPC, and the W3C trace context that links them, for the controller and the router.
//!
//! The few messages needed are hand-written: the OpenTelemetry SDK would add a second HTTP client and a dozen crates
//! for what is one unary call. Refuses: waiting. Finishing a span never blocks on a slow collector; spans that find the
//! queue full are dropped.

mod context;
mod environment;
mod export;
pub mod messages;
#[cfg(any(test, feature = "receiver"))]
pub mod receiver;

pub use context::{Hex, TraceParent};
pub use environment::{
    DEFAULT_ENDPOINT, ExportSettings, OTLP_ENDPOINT, OTLP_METRICS_ENDPOINT, OTLP_TRACES_ENDPOINT, Sampler, Service,
    SettingError,
};
pub use export::{Collector, EndpointError, METRICS_METHOD, Spans, TRACE_METHOD, unix_nanos};
