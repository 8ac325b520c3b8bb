//! Snapshots by namespace and name: which sealed layers each container of the sandbox had. A snapshot holds no files
//! itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use agent_sandbox_api::keys::annotations;
use serde::{Deserialize, Serialize};

use super::{atomic_file, layers};

/// Ending of the files.
const ENDING: &str = "json";

/// What a snapshot consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotRecord {
    /// The uid of the object that asked for the snapshot: another one of the same name has another uid.
    pub(crate) uid: String,
    /// Each container's layers, by its name.
    pub(crate) containers: BTreeMap<String, ContainerLayers>,
}

/// The layers of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerLayers {
    /// Digest of the image below.
    pub(crate) digest: String,
    /// Ids of sealed layers, topmost first.
    pub(crate) layers: Vec<String>,
}

/// The folder with the records of a node's snapshots.
#[derive(Debug, Clone)]
pub(crate) struct Snapshots {
    folder: PathBuf,
}

impl Snapshots {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("snapshots") }
    }

    fn path(&self, namespace: &str, name: &str) -> io::Result<PathBuf> {
        let file = format!("{}.{ENDING}", layers::single_component(name)?);
        Ok(self.folder.join(layers::single_component(namespace)?).join(file))
    }

    pub(crate) fn read(&self, namespace: &str, name: &str) -> io::Result<Option<SnapshotRecord>> {
        match atomic_file::read(&self.path(namespace, name)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    pub(crate) fn write(&self, namespace: &str, name: &str, record: &SnapshotRecord) -> io::Result<()> {
        let path = self.path(namespace, name)?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        atomic_file::replace_durably(&path, record)
    }

    /// Removes a snapshot, if it is still the one with this uid.
    pub(crate) fn remove(&self, namespace: &str, name: &str, uid: &str) -> io::Result<()> {
        if self.read(namespace, name)?.is_some_and(|record| record.uid == uid) {
            fs::remove_file(self.path(namespace, name)?)?;
        }
        Ok(())
    }

    /// The layers of a container in a snapshot, for a sandbox of the same namespace with the same image.
    pub(crate) fn layers_for(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
        digest: &str,
    ) -> io::Result<Vec<String>> {
        let refused = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let record = self.read(namespace, name)?.ok_or_else(|| {
            refused(format!(
                "this node has no snapshot {name:?} in namespace {namespace}: it was deleted, or is on another node; \
                 set the sandbox back to another one (`agent-sandbox rollback`), or suspend it, remove its annotation {} \
                 and resume it: it then starts with the files that it had last",
                annotations::SNAPSHOT
            ))
        })?;
        let layers = record
            .containers
            .get(container)
            .ok_or_else(|| refused(format!("snapshot {name:?} has no files of a container {container:?}")))?;
        match layers.digest == digest {
            true => Ok(layers.layers.clone()),
            false => Err(refused(format!(
                "snapshot {name:?} was taken on image {}, and the image of container {container:?} is {digest} now: name the image by its digest",
                layers.digest
            ))),
        }
    }

    /// The sealed layers that snapshots need.
    pub(crate) fn used_layers(&self) -> io::Result<BTreeSet<String>> {
        let mut used = BTreeSet::new();
        for file in self.files()? {
            let record: SnapshotRecord = atomic_file::read(&file)?;
            used.extend(record.containers.into_values().flat_map(|container| container.layers));
        }
        Ok(used)
    }

    /// All snapshots: namespace, name and uid of the object that each was taken for.
    pub(crate) fn all(&self) -> io::Result<Vec<[String; 3]>> {
        let mut found = Vec::new();
        for file in self.files()? {
            let record: SnapshotRecord = atomic_file::read(&file)?;
            let namespace = file.parent().and_then(Path::file_name);
            let names = namespace.and_then(OsStr::to_str).zip(file.file_stem().and_then(OsStr::to_str));
            found.extend(names.map(|(namespace, name)| [namespace.to_owned(), name.to_owned(), record.uid]));
        }
        Ok(found)
    }

    pub(crate) fn count(&self) -> io::Result<usize> {
        Ok(self.files()?.len())
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for namespace in entries(&self.folder)? {
            found.extend(entries(&namespace)?);
        }
        found.retain(|file| file.extension().is_some_and(|end| end == ENDING));
        Ok(found)
    }
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other?.map(|entry| Ok(entry?.path())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(uid: &str) -> SnapshotRecord {
        let layers = ContainerLayers { digest: "sha256:1".to_owned(), layers: vec!["top".to_owned()] };
        SnapshotRecord { uid: uid.to_owned(), containers: BTreeMap::from([("main".to_owned(), layers)]) }
    }

    #[test]
    fn a_snapshot_is_found_only_in_its_own_namespace_and_for_its_own_image() {
        let folder = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(folder.path());
        snapshots.write("one", "first", &record("u1")).unwrap();
        let layers = |namespace: &str, container: &str, digest: &str| {
            snapshots.layers_for(namespace, "first", container, digest).map_err(|error| error.to_string())
        };
        assert_eq!(layers("one", "main", "sha256:1"), Ok(vec!["top".to_owned()]));
        assert!(layers("two", "main", "sha256:1").unwrap_err().contains("no snapshot \"first\" in namespace two"));
        assert!(layers("one", "other", "sha256:1").unwrap_err().contains("container \"other\""));
        assert!(layers("one", "main", "sha256:2").unwrap_err().contains("was taken on image sha256:1"));
        for wrong in ["..", "a/b", "", "../one/first"] {
            assert!(snapshots.read("one", wrong).is_err(), "{wrong:?}");
            assert!(snapshots.read(wrong, "first").is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_snapshot_of_the_same_name_made_later_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(folder.path());
        snapshots.write("one", "first", &record("u2")).unwrap();
        snapshots.remove("one", "first", "u1").unwrap();
        assert_eq!(snapshots.used_layers().unwrap().len(), 1);
        assert_eq!(snapshots.all().unwrap(), [["one", "first", "u2"].map(str::to_owned)]);
        snapshots.remove("one", "first", "u2").unwrap();
        snapshots.remove("one", "first", "u2").unwrap();
        assert!(snapshots.used_layers().unwrap().is_empty());
    }
}
