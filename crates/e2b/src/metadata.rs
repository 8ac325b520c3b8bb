//! Metadata of clients as labels of the sandbox's object, or, what no label can hold, in one annotation.

use std::collections::BTreeMap;

use agent_sandbox_api::keys::{annotations, labels};
use agent_sandbox_protocol::e2b::query_pairs;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use percent_encoding::percent_decode_str;

use crate::error::Error;

pub(crate) type Metadata = BTreeMap<String, String>;

/// Longest name and value of a label.
const MAX_LABEL: usize = 63;
/// Total size in bytes that is accepted; annotations of one object have a common limit of 256 KiB.
const MAX_TOTAL: usize = 64 * 1024;

/// Labels, and the annotation for the rest.
pub(crate) fn store(metadata: &Metadata, meta: &mut ObjectMeta) -> Result<(), Error> {
    if metadata.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_TOTAL {
        return Err(Error::Invalid(format!("metadata is larger than {MAX_TOTAL} bytes")));
    }
    let (short, long): (Metadata, Metadata) =
        metadata.clone().into_iter().partition(|(key, value)| is_label(key) && (value.is_empty() || is_label(value)));
    let own = meta.labels.get_or_insert_default();
    own.extend(short.into_iter().map(|(key, value)| (format!("{}{key}", labels::E2B_METADATA_PREFIX), value)));
    if !long.is_empty() {
        let text = serde_json::to_string(&long).map_err(|error| Error::Internal(error.to_string()))?;
        meta.annotations.get_or_insert_default().insert(annotations::E2B_METADATA.to_owned(), text);
    }
    Ok(())
}

/// The metadata of an object.
pub(crate) fn load(meta: &ObjectMeta) -> Metadata {
    let annotation = meta.annotations.as_ref().and_then(|all| all.get(annotations::E2B_METADATA));
    let mut found: Metadata = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    for (key, value) in meta.labels.iter().flatten() {
        if let Some(key) = key.strip_prefix(labels::E2B_METADATA_PREFIX) {
            found.insert(key.to_owned(), value.clone());
        }
    }
    found
}

/// A filter from a query, where each key and value is encoded once more.
pub(crate) fn filter(text: &str) -> Metadata {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    query_pairs(text).map(|(key, value)| (decode(&key), decode(&value))).collect()
}

fn is_label(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    bytes.len() <= MAX_LABEL && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|byte| inner(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Metadata {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// E-030, E-036
    #[test]
    fn metadata_survive_as_labels_or_in_an_annotation() {
        let long = "x".repeat(64);
        let given = map(&[("user", "ann"), ("empty", ""), ("a b", "c&d"), ("long", &long), ("ä", "1")]);
        let mut meta = ObjectMeta::default();
        store(&given, &mut meta).unwrap();
        let own = meta.labels.clone().unwrap();
        assert_eq!(own.len(), 2, "{own:?}");
        assert_eq!(own["metadata.e2b.agent-sandbox.github.io/user"], "ann");
        assert_eq!(load(&meta), given);
        assert_eq!(load(&ObjectMeta::default()), Metadata::new());
        assert!(store(&map(&[("k", &"x".repeat(MAX_TOTAL))]), &mut meta).is_err());
    }

    /// E-036: as the published clients send it, after the query itself was decoded.
    #[test]
    fn filters_are_encoded_twice_below_the_query() {
        assert_eq!(filter("a%2520b=c%2526d&x=1"), map(&[("a b", "c&d"), ("x", "1")]));
    }
}
