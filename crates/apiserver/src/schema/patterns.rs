//! Patterns of schemas, compiled once: a Pod's schema alone says what a quantity looks like a dozen times.

use std::{collections::HashMap, sync::LazyLock};

use parking_lot::Mutex;
use regex::Regex;

/// More patterns than this are not kept; they come from users' definitions.
const MOST: usize = 256;

static KNOWN: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);

pub(super) fn compile(text: &str) -> Result<Regex, regex::Error> {
    if let Some(known) = KNOWN.lock().get(text) {
        return Ok(known.clone());
    }
    let compiled = Regex::new(text)?;
    let mut known = KNOWN.lock();
    if known.len() < MOST {
        known.insert(text.to_owned(), compiled.clone());
    }
    Ok(compiled)
}
