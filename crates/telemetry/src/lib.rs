//! Spans over OTLP/gRPC, and the W3C trace context that links them, for the controller and the router.
//!
//! The few messages needed are written out by hand: the OpenTelemetry SDK would bring a second HTTP client and a dozen crates for what is
//! one unary call. Refuses: waiting. Whoever finishes a span is never held up by a slow collector; spans that find the queue full are lost.

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
