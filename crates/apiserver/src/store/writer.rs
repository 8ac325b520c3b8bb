//! The one thread that makes writes durable and publishes them, a whole queue at a time.

use std::sync::Arc;

use super::{
    Store,
    sequencer::{Pending, Work},
};

/// Why a batch is not durable.
pub(super) enum Failure {
    /// It was not written; everything else is as before.
    Refused(Arc<str>),
    /// Nobody knows what is on the disk: this process must not answer any longer.
    Fatal(Arc<str>),
}

/// What makes a batch durable.
pub(super) trait Backing: Send {
    fn persist(&mut self, batch: &[Pending]) -> Result<(), Failure>;

    /// Called between batches, for upkeep.
    fn idle(&mut self, nothing_waits: bool) -> Result<(), Failure>;
}

/// Forgets everything at the end.
pub(super) struct Memory;

impl Backing for Memory {
    fn persist(&mut self, _: &[Pending]) -> Result<(), Failure> {
        Ok(())
    }

    fn idle(&mut self, _: bool) -> Result<(), Failure> {
        Ok(())
    }
}

pub(super) fn spawn(store: &Arc<Store>, backing: Box<dyn Backing>) -> std::io::Result<std::thread::JoinHandle<()>> {
    let store = store.clone();
    std::thread::Builder::new().name("store-writer".into()).spawn(move || run(&store, backing))
}

fn run(store: &Store, mut backing: Box<dyn Backing>) {
    while let Work::Batch(batch, barriers) = store.sequencer.take() {
        match backing.persist(&batch) {
            Ok(()) => publish(store, batch),
            Err(Failure::Refused(why)) => {
                tracing::error!(%why, "Writes were refused");
                store.sequencer.fail_all(batch, &why);
            }
            Err(Failure::Fatal(why)) => end(&why),
        }
        for barrier in barriers {
            let _ = barrier.send(Ok(()));
        }
        if let Err(Failure::Fatal(why) | Failure::Refused(why)) = backing.idle(store.sequencer.is_idle()) {
            end(&why);
        }
    }
}

#[expect(clippy::exit, reason = "after a failed sync, memory and disk may differ; only a restart finds out")]
fn end(why: &str) -> ! {
    tracing::error!(%why, "Stopping: the disk no longer holds what was promised");
    std::process::exit(74)
}

fn publish(store: &Store, mut batch: Vec<Pending>) {
    for pending in &batch {
        store.publish(&pending.storage, pending.event.clone());
    }
    store.sequencer.published(store, &batch);
    for pending in &mut batch {
        if let Some(ack) = pending.ack.take() {
            let _ = ack.send(Ok(pending.event.object.clone()));
        }
    }
}
