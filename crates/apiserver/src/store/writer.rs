//! The one thread that makes writes durable and publishes them, a whole queue at a time.

use std::sync::{Arc, Weak};

use super::{
    Store,
    sequencer::{Pending, Work},
};

/// What makes a batch durable.
pub(super) enum Backing {
    Memory,
}

impl Backing {
    fn persist(&mut self, _batch: &[Pending]) -> Result<(), Arc<str>> {
        match self {
            Self::Memory => Ok(()),
        }
    }
}

pub(super) fn spawn(store: &Arc<Store>, backing: Backing) -> std::io::Result<std::thread::JoinHandle<()>> {
    let store = Arc::downgrade(store);
    std::thread::Builder::new().name("store-writer".into()).spawn(move || run(&store, backing))
}

fn run(store: &Weak<Store>, mut backing: Backing) {
    while let Some(store) = store.upgrade() {
        let Work::Batch(batch, barriers) = store.sequencer.take() else { break };
        match backing.persist(&batch) {
            Ok(()) => publish(&store, batch),
            Err(why) => {
                store.sequencer.fail_all(batch, &why);
            }
        }
        for barrier in barriers {
            let _ = barrier.send(Ok(()));
        }
    }
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
