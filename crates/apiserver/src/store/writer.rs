//! The single thread that makes queued writes durable, one batch per queue, and publishes them.

use std::sync::Arc;

use super::{
    Store,
    sequencer::{Pending, Work},
};

/// Why a batch could not be made durable.
pub(super) enum PersistError {
    /// The batch was not written; earlier data is unaffected.
    Refused(Arc<str>),
    /// The state of the disk is unknown: this process must not serve requests any longer.
    Fatal(Arc<str>),
}

/// The storage that batches are written to.
pub(super) trait Backend: Send {
    fn persist(&mut self, batch: &[Pending]) -> Result<(), PersistError>;

    /// Called between batches for maintenance, such as checkpoints.
    fn maintain(&mut self, queue_empty: bool) -> Result<(), PersistError>;
}

/// A backend without persistence.
pub(super) struct InMemory;

impl Backend for InMemory {
    fn persist(&mut self, _: &[Pending]) -> Result<(), PersistError> {
        Ok(())
    }

    fn maintain(&mut self, _: bool) -> Result<(), PersistError> {
        Ok(())
    }
}

pub(super) fn spawn(store: &Arc<Store>, backend: Box<dyn Backend>) -> std::io::Result<std::thread::JoinHandle<()>> {
    let store = store.clone();
    std::thread::Builder::new().name("store-writer".into()).spawn(move || run(&store, backend))
}

fn run(store: &Store, mut backend: Box<dyn Backend>) {
    while let Work::Batch(batch, barriers) = store.sequencer.take() {
        match backend.persist(&batch) {
            Ok(()) => publish(store, batch),
            Err(PersistError::Refused(why)) => {
                tracing::error!(%why, "Cannot write to the data file");
                store.sequencer.fail_all(batch, &why);
            }
            Err(PersistError::Fatal(why)) => exit_after_failed_sync(&why),
        }
        for barrier in barriers {
            let _ = barrier.send(Ok(()));
        }
        if let Err(PersistError::Fatal(why) | PersistError::Refused(why)) = backend.maintain(store.sequencer.is_idle())
        {
            exit_after_failed_sync(&why);
        }
    }
}

#[expect(
    clippy::exit,
    reason = "after a failed sync, memory and disk may differ; only a restart reads back what is on disk"
)]
fn exit_after_failed_sync(why: &str) -> ! {
    tracing::error!(%why, "Stopping: acknowledged writes may not be on the disk");
    std::process::exit(74)
}

fn publish(store: &Store, mut batch: Vec<Pending>) {
    for pending in &batch {
        store.publish(&pending.storage, pending.event.clone());
    }
    store.sequencer.mark_published(store, &batch);
    for pending in &mut batch {
        if let Some(ack) = pending.ack.take() {
            let _ = ack.send(Ok(pending.event.object.clone()));
        }
    }
}
