//! The SandboxTemplate reconciler: the label with the template's hash, and one NetworkPolicy for all its Pods.
//!
//! A SandboxTemplate has no status, so there is no `status` module.

mod apply;
mod observe;
mod plan;
mod policy;
mod route;

use std::sync::Arc;

use async_trait::async_trait;

use self::{apply::apply, observe::observe};
pub use self::{
    plan::{Observed, Plan, plan},
    policy::desired_spec,
    route::route,
};
use crate::{
    api_client::{ApiClient, Lane, Writer},
    cache::{Key, Kind, ReconcilerKind, Store, WorkItem},
    reconcile::{Interrupted, LiveReads, Next, Pass, ReconcileError, Reconciler, run_attempts},
};

pub struct TemplateReconciler {
    store: Arc<Store>,
    api: Arc<dyn ApiClient>,
}

impl TemplateReconciler {
    pub fn new(store: Arc<Store>, api: Arc<dyn ApiClient>) -> Self {
        Self { store, api }
    }
}

#[async_trait]
impl Reconciler for TemplateReconciler {
    fn kind(&self) -> ReconcilerKind {
        ReconcilerKind::Template
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let origin = WorkItem::new(ReconcilerKind::Template, key.clone());
        let writer = Writer::new(self.api.clone(), self.store.clone(), Lane::Core, origin);
        run_attempts(&TemplatePass { store: &self.store, writer: &writer, key }).await
    }
}

/// One pass over a template.
struct TemplatePass<'a> {
    store: &'a Store,
    writer: &'a Writer,
    key: &'a Key,
}

impl Pass for TemplatePass<'_> {
    const MAX_ATTEMPTS: usize = 5;

    const KIND: Kind = Kind::Template;

    fn writer(&self) -> &Writer {
        self.writer
    }

    async fn attempt(&self, _: &LiveReads) -> Result<Next, Interrupted> {
        let Some(observed) = observe(&self.store.read(), self.key) else { return Ok(Next::Idle) };
        apply(self.writer, plan(&observed)).await
    }
}

#[cfg(test)]
mod tests;
