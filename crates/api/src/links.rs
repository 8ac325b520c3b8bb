//! Links to ports, as the router records them in an annotation of the Sandbox. A link is valid while its record exists:
//! revoking it removes the record, and a Sandbox of the same name that is created later has none. Pure functions.

use serde::{Deserialize, Serialize};

/// Links that a Sandbox may have at a time, so that the annotation stays small.
pub const MAX_LINKS: usize = 32;

/// The record of one link. It holds no secret: the link's token is signed, not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkRecord {
    pub id: String,
    pub ports: Vec<u16>,
    #[serde(default)]
    pub read_only: bool,
    /// Unix seconds.
    pub created: i64,
    pub expires: i64,
    /// The user that created it; empty where the router does not know its callers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created_by: String,
}

/// The Sandbox has [`MAX_LINKS`] links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox has {MAX_LINKS} links already; revoke one first: agent-sandbox url list")]
pub struct TooManyLinks;

/// The records in an annotation that are valid at `now`. Text that is no list of records is no link.
pub fn read(annotation: Option<&str>, now: i64) -> Vec<LinkRecord> {
    let records: Vec<LinkRecord> = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    records.into_iter().filter(|record| record.expires > now).collect()
}

/// The annotation with a further record, and without expired ones.
pub fn with(annotation: Option<&str>, new: LinkRecord, now: i64) -> Result<String, TooManyLinks> {
    let mut records = read(annotation, now);
    if records.len() >= MAX_LINKS {
        return Err(TooManyLinks);
    }
    records.push(new);
    Ok(text(&records))
}

/// The annotation without a record and without expired ones: the outer `None` if there is no such record, the inner
/// one if no record is left.
pub fn without(annotation: Option<&str>, id: &str, now: i64) -> Option<Option<String>> {
    let mut records = read(annotation, now);
    let before = records.len();
    records.retain(|record| record.id != id);
    (records.len() < before).then(|| (!records.is_empty()).then(|| text(&records)))
}

fn text(records: &[LinkRecord]) -> String {
    serde_json::to_string(records).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, expires: i64) -> LinkRecord {
        LinkRecord {
            id: id.to_owned(),
            ports: vec![3000],
            read_only: false,
            created: 0,
            expires,
            created_by: "alice".to_owned(),
        }
    }

    #[test]
    fn records_come_and_go_and_expired_ones_are_dropped_on_the_way() {
        let one = with(None, record("a", 10), 0).unwrap();
        let two = with(Some(&one), record("b", 30), 5).unwrap();
        assert_eq!(read(Some(&two), 5), [record("a", 10), record("b", 30)]);
        assert_eq!(read(Some(&two), 10), [record("b", 30)]);
        let three = with(Some(&two), record("c", 40), 20).unwrap();
        assert!(!three.contains("\"a\""), "{three}");
        let left = without(Some(&three), "b", 20).unwrap().unwrap();
        assert_eq!(read(Some(&left), 20), [record("c", 40)]);
        assert_eq!(without(Some(&left), "c", 20), Some(None));
        assert_eq!(without(Some(&left), "b", 20), None);
    }

    #[test]
    fn the_number_of_links_is_bounded_and_other_text_is_no_link() {
        let mut text = None;
        for id in 0..MAX_LINKS {
            text = Some(with(text.as_deref(), record(&id.to_string(), 100), 0).unwrap());
        }
        assert_eq!(with(text.as_deref(), record("more", 100), 0), Err(TooManyLinks));
        assert!(with(text.as_deref(), record("later", 200), 100).is_ok(), "all others have expired");
        for other in ["", "[", "{}", "[1]", r#"[{"id":"a"}]"#] {
            assert!(read(Some(other), 0).is_empty(), "{other}");
        }
    }
}
