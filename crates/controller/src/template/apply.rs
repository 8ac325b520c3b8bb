//! Applies a template's plan: sends the planned requests in order.

use super::plan::Plan;
use crate::{
    api_client::{ApiError, Writer},
    reconcile::{Interrupted, Next, ReconcileError},
};

pub(super) async fn apply(writer: &Writer, plan: Plan) -> Result<Next, Interrupted> {
    for request in plan.label.iter().chain(&plan.policy) {
        match writer.send(request).await {
            Ok(_) => {}
            Err(ApiError::Conflict { .. } | ApiError::AlreadyExists { .. } | ApiError::NotFound { .. }) => {
                return Err(Interrupted::Stale { kind: request.kind, key: request.key.clone() });
            }
            Err(error) => return Err(error.into()),
        }
    }
    match plan.refusal {
        Some(refusal) => Err(ReconcileError::transient(refusal).into()),
        None => Ok(Next::Idle),
    }
}
