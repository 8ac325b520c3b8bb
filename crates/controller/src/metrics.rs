//! What the controller counts, in Prometheus form.

use std::time::Duration;

use crate::store::Target;

/// How a pass ended, as controller-runtime names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassResult {
    Success,
    RequeueAfter,
    Error,
}

#[derive(Default)]
pub struct Metrics {}

impl Metrics {
    pub fn reconciled(&self, _target: Target, _result: PassResult, _took: Duration) {}

    pub fn requested(&self, _method: &http::Method, _status: Option<http::StatusCode>) {}

    pub fn panicked(&self, _target: Target) {}
}
