//! Host folders that the operator gives to single Sandboxes, in addition to the `hostPath` folders that all Pods may
//! mount. A grant is for the Sandbox of one name, one folder, and one kind of access, and ends with that Sandbox.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::kernel::replace_durably;
use crate::kubelet::pod_sandbox::{self, OwnerKind};

/// What a Pod may do with a folder.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FolderAccess {
    /// Have a private, writable copy of it.
    #[default]
    Copy,
    /// Mount the folder itself read-only.
    Read,
    /// Mount the folder itself.
    Write,
}

impl FolderAccess {
    /// Whether a grant of this access allows the other. Mounting a folder does not allow to copy it: who may discard
    /// and apply the changes was not asked.
    fn covers(self, wanted: Self) -> bool {
        self == wanted || (self, wanted) == (Self::Write, Self::Read)
    }
}

/// A folder of the host, and what a Sandbox may do with it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantedFolder {
    /// Without symbolic links: none is followed.
    pub path: PathBuf,
    #[serde(default)]
    pub access: FolderAccess,
}

/// A folder that the Pods of one Sandbox may have.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Grant {
    namespace: String,
    /// Name of the Pod.
    name: String,
    #[serde(flatten)]
    folder: GrantedFolder,
    /// The owner that used the grant first, by its key. A later owner of the same name may not use it.
    owner: Option<String>,
    /// The kind of that owner, if it is not the Pod itself. A reference to the owner's uid with another kind is forged.
    /// Grants of earlier versions do not have it before they are used again.
    #[serde(default)]
    owner_kind: Option<OwnerKind>,
}

/// The grants of a node.
#[derive(Clone, Debug, Default)]
pub struct FolderGrants(Arc<Mutex<Grants>>);

#[derive(Debug, Default)]
struct Grants {
    file: PathBuf,
    list: Vec<Grant>,
}

impl FolderGrants {
    /// Reads the grants of an earlier process.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        // Grants of earlier versions were for copies only.
        let file = data_dir.join("copy-grants.json");
        let list = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self(Arc::new(Mutex::new(Grants { file, list }))))
    }

    /// Allows the Pod of a Sandbox that is about to be created to have these folders, and no others.
    pub fn allow(&self, namespace: &str, name: &str, folders: &[GrantedFolder]) -> io::Result<()> {
        let mut grants = self.0.lock();
        grants.list.retain(|grant| grant.namespace != namespace || grant.name != name);
        let new = folders.iter().map(|folder| Grant {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            folder: folder.clone(),
            owner: None,
            owner_kind: None,
        });
        grants.list.extend(new);
        replace_durably(&grants.file, &grants.list)
    }

    /// Whether a Pod may have a folder in this way. The first owner that asks is remembered.
    pub(crate) fn permits(&self, pod: &Pod, path: &Path, wanted: FolderAccess) -> bool {
        let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else { return false };
        let owner = pod_sandbox::owner(pod);
        let kind = pod_sandbox::controller(pod).map(|owner| OwnerKind::new(&owner.api_version, &owner.kind));
        let mut grants = self.0.lock();
        let is_it = |grant: &&mut Grant| {
            (&grant.namespace, &grant.name, grant.folder.path.as_path()) == (namespace, name, path)
                && grant.folder.access.covers(wanted)
        };
        let Some(grant) = grants.list.iter_mut().find(is_it) else { return false };
        if grant.owner.as_ref().is_some_and(|first| *first != owner)
            || grant.owner_kind.as_ref().is_some_and(|first| Some(first) != kind.as_ref())
        {
            return false;
        }
        if grant.owner.is_some() && grant.owner_kind == kind {
            return true;
        }
        grant.owner = Some(owner);
        grant.owner_kind = kind;
        let saved = replace_durably(&grants.file, &grants.list);
        if let Err(error) = &saved {
            tracing::warn!(%error, "Could not record which Sandbox may have a folder");
        }
        saved.is_ok()
    }

    /// The keys of the owners that used grants.
    pub(crate) fn owners(&self) -> Vec<String> {
        self.0.lock().list.iter().filter_map(|grant| grant.owner.clone()).collect()
    }

    /// Ends the grants of an owner that no longer exists.
    pub(crate) fn revoke(&self, owner: &str) {
        let mut grants = self.0.lock();
        let before = grants.list.len();
        grants.list.retain(|grant| grant.owner.as_deref() != Some(owner));
        if grants.list.len() == before {
            return;
        }
        // The next node process ends grants of missing owners, too.
        if let Err(error) = replace_durably(&grants.file, &grants.list) {
            tracing::warn!(%error, owner, "Could not record that the grants of a deleted Sandbox ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(namespace: &str, name: &str, owner: &str) -> Pod {
        pod_of_kind("x.y/v1", "Sandbox", namespace, name, owner)
    }

    fn pod_of_kind(api_version: &str, kind: &str, namespace: &str, name: &str, owner: &str) -> Pod {
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": owner, "controller": true});
        let metadata = json!({"namespace": namespace, "name": name, "uid": "p", "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn folder(path: &str, access: FolderAccess) -> GrantedFolder {
        GrantedFolder { path: path.into(), access }
    }

    #[test]
    fn a_grant_is_for_one_sandbox_and_outlives_the_process() {
        let data = tempfile::tempdir().unwrap();
        let grants = FolderGrants::open(data.path()).unwrap();
        let repo = Path::new("/home/a/repo");
        let permits = |grants: &FolderGrants, pod: Pod, path: &Path| grants.permits(&pod, path, FolderAccess::Copy);
        assert!(!permits(&grants, pod("a", "box", "u"), repo));
        grants.allow("a", "box", &[folder("/home/a/repo", FolderAccess::Copy)]).unwrap();
        for (other, path) in [
            (pod("b", "box", "u"), repo),
            (pod("a", "other", "u"), repo),
            (pod("a", "box", "u"), Path::new("/home/a")),
            (pod("a", "box", "u"), Path::new("/home/a/repo/sub")),
        ] {
            assert!(!permits(&grants, other.clone(), path), "{other:?} {path:?}");
        }
        assert!(permits(&grants, pod("a", "box", "u"), repo));
        let grants = FolderGrants::open(data.path()).unwrap();
        assert!(permits(&grants, pod("a", "box", "u"), repo), "resumed by a later process");
        assert!(!permits(&grants, pod("a", "box", "v"), repo), "another Sandbox of the same name");
        grants.allow("a", "box", &[]).unwrap();
        assert!(!permits(&grants, pod("a", "box", "u"), repo));
    }

    #[test]
    fn a_reference_to_the_owner_with_another_kind_has_no_grant() {
        let data = tempfile::tempdir().unwrap();
        let repo = Path::new("/repo");
        let old = r#"[{"namespace": "a", "name": "box", "path": "/repo", "owner": "a.u"}]"#;
        std::fs::write(data.path().join("copy-grants.json"), old).unwrap();
        let open = || FolderGrants::open(data.path()).unwrap();
        assert!(open().permits(&pod("a", "box", "u"), repo, FolderAccess::Copy), "a grant of an earlier version");
        let of_kind = |api_version: &str, kind: &str| {
            open().permits(&pod_of_kind(api_version, kind, "a", "box", "u"), repo, FolderAccess::Copy)
        };
        assert!(of_kind("x.y/v2", "Sandbox"), "another version of the kind");
        assert!(!of_kind("x.y/v1", "Unknown") && !of_kind("z/v1", "Sandbox") && !of_kind("v1", "Sandbox"));
    }

    #[test]
    fn a_revoked_grant_is_gone_for_later_processes_too() {
        let data = tempfile::tempdir().unwrap();
        let grants = FolderGrants::open(data.path()).unwrap();
        let permits = |grants: &FolderGrants, name: &str, owner: &str| {
            grants.permits(&pod("a", name, owner), Path::new("/repo"), FolderAccess::Copy)
        };
        for name in ["box", "other", "unused"] {
            grants.allow("a", name, &[folder("/repo", FolderAccess::Copy)]).unwrap();
        }
        assert!(permits(&grants, "box", "u") && permits(&grants, "other", "v"));
        assert_eq!(grants.owners(), ["a.u", "a.v"]);
        grants.revoke("a.u");
        for grants in [grants, FolderGrants::open(data.path()).unwrap()] {
            assert!(!permits(&grants, "box", "u") && permits(&grants, "other", "v"));
        }
        assert!(permits(&FolderGrants::open(data.path()).unwrap(), "unused", "w"), "a Sandbox not created yet");
    }

    #[test]
    fn a_grant_is_for_one_kind_of_access() {
        use FolderAccess::{Copy, Read, Write};
        let data = tempfile::tempdir().unwrap();
        let grants = FolderGrants::open(data.path()).unwrap();
        let folders = [folder("/copied", Copy), folder("/shown", Read), folder("/written", Write)];
        grants.allow("a", "box", &folders).unwrap();
        let allowed = |path: &str| {
            let kinds = [Copy, Read, Write].into_iter();
            kinds.filter(|kind| grants.permits(&pod("a", "box", "u"), Path::new(path), *kind)).collect::<Vec<_>>()
        };
        assert_eq!(
            (allowed("/copied"), allowed("/shown"), allowed("/written")),
            (vec![Copy], vec![Read], vec![Read, Write])
        );
    }

    #[test]
    fn grants_of_earlier_versions_are_for_copies() {
        let data = tempfile::tempdir().unwrap();
        let old = r#"[{"namespace": "a", "name": "box", "path": "/repo", "owner": null}]"#;
        std::fs::write(data.path().join("copy-grants.json"), old).unwrap();
        let grants = FolderGrants::open(data.path()).unwrap();
        assert!(!grants.permits(&pod("a", "box", "u"), Path::new("/repo"), FolderAccess::Read));
        assert!(grants.permits(&pod("a", "box", "u"), Path::new("/repo"), FolderAccess::Copy));
    }
}
