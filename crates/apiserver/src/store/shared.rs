//! Texts that many objects have in common, kept once. Who set which field of an object is written in a text as long as the object, and
//! is the same for every object made from one template.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;

/// Shorter texts are not worth the bookkeeping.
pub(super) const WORTHWHILE: usize = 96;
/// Texts that nobody uses any longer are looked for when there are this many, and whenever their number has doubled.
const FIRST_SWEEP: usize = 1024;

static TEXTS: LazyLock<Mutex<Texts>> =
    LazyLock::new(|| Mutex::new(Texts { known: HashSet::new(), sweep_at: FIRST_SWEEP }));

struct Texts {
    known: HashSet<Arc<[u8]>>,
    sweep_at: usize,
}

/// The one copy of `text`.
pub(crate) fn share(text: &[u8]) -> Arc<[u8]> {
    TEXTS.lock().share(text)
}

impl Texts {
    fn share(&mut self, text: &[u8]) -> Arc<[u8]> {
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
    fn equal_texts_are_one_and_unused_ones_go() {
        let mut texts = Texts { known: HashSet::new(), sweep_at: 8 };
        let kept = texts.share(b"kept");
        assert!(Arc::ptr_eq(&kept, &texts.share(b"kept")));
        for n in 0..100u8 {
            texts.share(&[n; 4]);
        }
        assert!(texts.known.len() < FIRST_SWEEP && texts.known.contains(&b"kept"[..]));
        texts.sweep_at = 0;
        texts.share(b"one more");
        assert_eq!(texts.known.len(), 2, "what nobody holds was dropped");
    }
}
