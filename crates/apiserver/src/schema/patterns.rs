//! Cache of compiled regular expressions of schemas: a Pod's schema alone contains the quantity pattern a dozen times.

use std::{collections::HashMap, sync::LazyLock};

use parking_lot::Mutex;
use regex::Regex;

/// Maximum number of cached patterns. Patterns come from users' CRDs, so their number is not otherwise bounded.
const MAX_CACHED: usize = 256;

static CACHE: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);

pub(super) fn compile(text: &str) -> Result<Regex, regex::Error> {
    if let Some(known) = CACHE.lock().get(text) {
        return Ok(known.clone());
    }
    let compiled = Regex::new(text)?;
    let mut known = CACHE.lock();
    if known.len() < MAX_CACHED {
        known.insert(text.to_owned(), compiled.clone());
    }
    Ok(compiled)
}
