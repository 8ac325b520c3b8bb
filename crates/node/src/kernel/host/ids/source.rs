//! The source of Pods' user ids on this host: blocks as root, blocks of the caller's subordinate ids, or the caller's
//! own id.

use std::collections::BTreeSet;
use std::io;

use super::{IdBlocks, SharedTable, Subordinates, root_blocks};
use crate::kernel::config::KernelConfig;
use crate::kernel::storage::owned_files::FileAccess;
use crate::kernel::supervisor::plan::IdMode;

pub(crate) enum IdSource {
    Root,
    Subordinate {
        ids: Subordinates,
        file_access: FileAccess,
    },
    /// All Pods run under the caller's id; `why` is the reason, as advice.
    Caller {
        why: String,
    },
}

impl IdSource {
    pub(crate) fn find(config: &KernelConfig, privileged: bool) -> Self {
        if privileged {
            return Self::Root;
        }
        match FileAccess::mapped(&config.helper) {
            Ok((file_access, ids)) => Self::Subordinate { ids, file_access },
            Err(why) => Self::Caller { why },
        }
    }

    /// Opens the table of this node's blocks.
    pub(crate) fn open_blocks(&self, config: &KernelConfig) -> io::Result<IdBlocks> {
        let (usable, table) = match self {
            Self::Root => (root_blocks(config.first_id, config.id_blocks), SharedTable::of_machine(&config.data_dir)),
            Self::Subordinate { ids, .. } => {
                (ids.first_uids().collect(), SharedTable::of_caller(&config.data_dir, ids.size))
            }
            Self::Caller { .. } => (BTreeSet::new(), SharedTable::of_caller(&config.data_dir, 1)),
        };
        IdBlocks::open(&config.data_dir, usable, table)
    }

    /// Whether Pods get blocks of ids at all.
    pub(crate) fn has_blocks(&self) -> bool {
        !matches!(self, Self::Caller { .. })
    }

    /// The id mode of a block, given its first uid; `None` when this host does not give out that block.
    pub(crate) fn mode(&self, first: u32) -> Option<IdMode> {
        match self {
            Self::Root => Some(IdMode::Block { first }),
            Self::Subordinate { ids, .. } => {
                let first_gid = ids.first_gid(first)?;
                Some(IdMode::Subordinate { first_uid: first, first_gid, count: ids.size })
            }
            Self::Caller { .. } => None,
        }
    }

    /// How files that sandboxes wrote are removed and measured.
    pub(crate) fn file_access(&self) -> &FileAccess {
        match self {
            Self::Subordinate { file_access, .. } => file_access,
            Self::Root | Self::Caller { .. } => &FileAccess::Direct,
        }
    }
}
