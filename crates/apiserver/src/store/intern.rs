//! Interning of byte strings that many objects share. The `fieldsV1` JSON in `managedFields` is about as long as the
//! object itself and identical for all objects created from one template, so only one copy is kept in memory.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;

/// Minimum length of an interned text. For shorter ones the table entry costs more than it saves.
pub(super) const MIN_LEN: usize = 96;
/// Number of texts at which unused ones are first swept out. Later sweeps run whenever the number has doubled.
const FIRST_SWEEP: usize = 1024;

static INTERNER: LazyLock<Mutex<Interner>> =
    LazyLock::new(|| Mutex::new(Interner { known: HashSet::new(), sweep_at: FIRST_SWEEP }));

struct Interner {
    known: HashSet<Arc<[u8]>>,
    sweep_at: usize,
}

/// Returns the shared copy of `text`.
pub(crate) fn intern(text: &[u8]) -> Arc<[u8]> {
    INTERNER.lock().intern(text)
}

impl Interner {
    fn intern(&mut self, text: &[u8]) -> Arc<[u8]> {
        if let Some(found) = self.known.get(text) {
            return found.clone();
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|text| Arc::strong_count(text) > 1);
            self.known.shrink_to(FIRST_SWEEP);
            self.sweep_at = FIRST_SWEEP.max(2 * self.known.len());
        }
        let text: Arc<[u8]> = text.into();
        self.known.insert(text.clone());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_one_copy_and_unused_ones_are_swept() {
        let mut interner = Interner { known: HashSet::new(), sweep_at: 8 };
        let kept = interner.intern(b"kept");
        assert!(Arc::ptr_eq(&kept, &interner.intern(b"kept")));
        for n in 0..100u8 {
            interner.intern(&[n; 4]);
        }
        assert!(interner.known.len() < FIRST_SWEEP && interner.known.contains(&b"kept"[..]));
        interner.sweep_at = 0;
        interner.intern(b"one more");
        assert_eq!(interner.known.len(), 2, "unused texts were dropped");
    }
}
