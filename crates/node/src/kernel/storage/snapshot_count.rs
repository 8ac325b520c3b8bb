//! Counts what a data folder keeps of snapshots, without changing anything there.

use std::io;
use std::path::Path;

use super::sealed::SealedLayers;
use super::snapshots::Snapshots;
use super::{has_file_system, is_mounted};

/// What a node keeps of snapshots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotCount {
    pub snapshots: usize,
    pub layers: usize,
    /// Layers that neither a snapshot nor a sandbox needs; `None` if what a sandbox needs cannot be read, because its
    /// size-limited layer is not mounted.
    pub unused: Option<usize>,
    /// Layers that a snapshot or a sandbox needs, and that do not exist.
    pub missing: usize,
}

impl SnapshotCount {
    /// Reads the data folder of a node.
    pub fn of(data_dir: &Path) -> io::Result<Self> {
        let (sealed, snapshots) = (SealedLayers::new(data_dir), Snapshots::new(data_dir));
        let all = sealed.all()?;
        let unreadable = std::cell::Cell::new(false);
        let look = |layer: &Path| {
            unreadable.set(unreadable.get() || (has_file_system(layer) && !is_mounted(layer)?));
            Ok(())
        };
        let mut used = SealedLayers::used_by_layers(&data_dir.join("layers"), look)?;
        used.extend(snapshots.used_layers()?);
        Ok(Self {
            snapshots: snapshots.count()?,
            layers: all.len(),
            unused: (!unreadable.get()).then(|| all.difference(&used).count()),
            missing: used.difference(&all).count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::storage::sealed::Below;
    use crate::kernel::storage::snapshots::{ContainerLayers, SnapshotRecord};

    #[test]
    fn layers_of_snapshots_and_of_sandboxes_are_in_use_and_others_are_not() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(SnapshotCount::of(data.path()).unwrap(), SnapshotCount { unused: Some(0), ..Default::default() });
        for id in ["of-snapshot", "of-sandbox", "of-nothing"] {
            std::fs::create_dir_all(data.path().join("sealed").join(id)).unwrap();
        }
        let layers = ContainerLayers { digest: "sha256:1".to_owned(), layers: vec!["of-snapshot".to_owned()] };
        let record = SnapshotRecord { uid: "u".to_owned(), containers: [("main".to_owned(), layers)].into() };
        Snapshots::new(data.path()).write("default", "first", &record).unwrap();
        let layer = data.path().join("layers/owner/main");
        std::fs::create_dir_all(&layer).unwrap();
        Below { origin: None, layers: ["of-sandbox", "gone"].map(str::to_owned).into() }.write(&layer).unwrap();
        let expected = SnapshotCount { snapshots: 1, layers: 3, unused: Some(1), missing: 1 };
        assert_eq!(SnapshotCount::of(data.path()).unwrap(), expected);
        std::fs::write(data.path().join("layers/owner/.main.ext4"), "").unwrap();
        assert_eq!(SnapshotCount::of(data.path()).unwrap().unused, None, "its file system is not mounted");
    }
}
