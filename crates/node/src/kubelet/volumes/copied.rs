//! Host folders of which a Pod gets a private, writable copy instead of the folder itself: an annotation names the
//! `hostPath` volumes. Which folders may be copied is decided as for other `hostPath` volumes, see
//! [`grants`](super::grants).

use std::collections::BTreeMap;

use agent_sandbox_api::keys::annotations::COPIED_VOLUMES;
use k8s_openapi::api::core::v1::Pod;

/// Suffix of a volume's name in the annotation: its changes are never applied.
const PRIVATE: &str = "=private";

/// The copied volumes of a Pod by name, and whether their changes are private.
pub fn copied(pod: &Pod) -> BTreeMap<String, bool> {
    let text = pod.metadata.annotations.as_ref().and_then(|all| all.get(COPIED_VOLUMES)).map_or("", String::as_str);
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .map(|name| match name.strip_suffix(PRIVATE) {
            Some(name) => (name.to_owned(), true),
            None => (name.to_owned(), false),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_annotation_names_volumes_and_marks_private_ones() {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "box"}})).unwrap();
        assert!(copied(&pod).is_empty());
        let text = "here, git,with-0=private,".to_owned();
        pod.metadata.annotations = Some(BTreeMap::from([(COPIED_VOLUMES.to_owned(), text)]));
        let expected = [("git", false), ("here", false), ("with-0", true)].map(|(name, own)| (name.to_owned(), own));
        assert_eq!(copied(&pod), BTreeMap::from(expected));
    }
}
