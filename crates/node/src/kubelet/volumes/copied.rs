//! Host folders of which a Pod gets a private, writable copy instead of the folder itself: an annotation names the
//! `hostPath` volumes. The rules for `hostPath` apply unchanged, and in addition the operator can allow a folder to be
//! copied for one Sandbox.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_sandbox_api::keys::annotations::COPIED_VOLUMES;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::kernel::replace_durably;
use crate::kubelet::pod_sandbox;

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

/// One folder that the Pods of one Sandbox may have a copy of.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Grant {
    namespace: String,
    /// Name of the Pod.
    name: String,
    path: PathBuf,
    /// The owner that used the grant first, by its key. A later owner of the same name may not use it.
    owner: Option<String>,
}

/// Folders that may be copied, in addition to the `hostPath` folders that the operator allows.
#[derive(Clone, Debug, Default)]
pub struct CopyGrants(Arc<Mutex<Grants>>);

#[derive(Debug, Default)]
struct Grants {
    file: PathBuf,
    list: Vec<Grant>,
}

impl CopyGrants {
    /// Reads the grants of an earlier process.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let file = data_dir.join("copy-grants.json");
        let list = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self(Arc::new(Mutex::new(Grants { file, list }))))
    }

    /// Allows copies of these folders in the Pod of a Sandbox that is about to be created, and of no others.
    pub fn allow(&self, namespace: &str, name: &str, paths: &[PathBuf]) -> io::Result<()> {
        let mut grants = self.0.lock();
        grants.list.retain(|grant| grant.namespace != namespace || grant.name != name);
        let new = paths.iter().map(|path| Grant {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            path: path.clone(),
            owner: None,
        });
        grants.list.extend(new);
        replace_durably(&grants.file, &grants.list)
    }

    /// Whether a Pod may have a copy of a folder. The first owner that asks is remembered.
    pub(crate) fn permits(&self, pod: &Pod, path: &Path) -> bool {
        let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else { return false };
        let owner = pod_sandbox::owner(pod);
        let mut grants = self.0.lock();
        let is_it = |grant: &&mut Grant| grant.namespace == *namespace && grant.name == *name && grant.path == path;
        let Some(grant) = grants.list.iter_mut().find(is_it) else { return false };
        match &grant.owner {
            Some(first) => *first == owner,
            None => {
                grant.owner = Some(owner);
                let saved = replace_durably(&grants.file, &grants.list);
                if let Err(error) = &saved {
                    tracing::warn!(%error, "Could not record who may copy a folder");
                }
                saved.is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(namespace: &str, name: &str, owner: &str) -> Pod {
        let owner = json!({"apiVersion": "v1", "kind": "Sandbox", "name": name, "uid": owner, "controller": true});
        let metadata = json!({"namespace": namespace, "name": name, "uid": "p", "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn the_annotation_names_volumes_and_marks_private_ones() {
        let mut pod = pod("a", "box", "u");
        assert!(copied(&pod).is_empty());
        let text = "here, git,with-0=private,".to_owned();
        pod.metadata.annotations = Some(BTreeMap::from([(COPIED_VOLUMES.to_owned(), text)]));
        let expected = [("git", false), ("here", false), ("with-0", true)].map(|(name, own)| (name.to_owned(), own));
        assert_eq!(copied(&pod), BTreeMap::from(expected));
    }

    #[test]
    fn a_grant_is_for_one_sandbox_and_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let grants = CopyGrants::open(folder.path()).unwrap();
        let repo = Path::new("/home/a/repo");
        assert!(!grants.permits(&pod("a", "box", "u"), repo));
        grants.allow("a", "box", &[repo.to_owned()]).unwrap();
        for (other, path) in [
            (pod("b", "box", "u"), repo),
            (pod("a", "other", "u"), repo),
            (pod("a", "box", "u"), Path::new("/home/a")),
            (pod("a", "box", "u"), Path::new("/home/a/repo/sub")),
        ] {
            assert!(!grants.permits(&other, path), "{other:?} {path:?}");
        }
        assert!(grants.permits(&pod("a", "box", "u"), repo));
        let grants = CopyGrants::open(folder.path()).unwrap();
        assert!(grants.permits(&pod("a", "box", "u"), repo), "resumed by a later process");
        assert!(!grants.permits(&pod("a", "box", "v"), repo), "another Sandbox of the same name");
        grants.allow("a", "box", &[]).unwrap();
        assert!(!grants.permits(&pod("a", "box", "u"), repo));
    }
}
