//! Spans over OTLP/gRPC with the W3C trace context that links them, the audit log, and the writer of log lines.
//!
//! The few messages needed are hand-written: the OpenTelemetry SDK would add a second HTTP client and a dozen crates
//! for what is one unary call. Refuses: waiting. Finishing a span never blocks on a slow collector; spans that find the
//! queue full are dropped.

pub mod audit;
mod context;
mod environment;
mod export;
mod line_writer;
pub mod messages;
#[cfg(any(test, feature = "receiver"))]
pub mod receiver;
mod rotating_file;

pub use context::{Hex, TraceParent};
pub use environment::{
    DEFAULT_ENDPOINT, ExportSettings, OTLP_ENDPOINT, OTLP_METRICS_ENDPOINT, OTLP_TRACES_ENDPOINT, Sampler, Service,
    SettingError,
};
pub use export::{Collector, EndpointError, METRICS_METHOD, Spans, TRACE_METHOD, unix_nanos};
pub use line_writer::LineWriter;
pub use rotating_file::{RotatingFile, rotated};
