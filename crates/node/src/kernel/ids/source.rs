//! Where the user ids of Pods come from on this host: blocks as root, blocks of the caller's subordinate ids, or the caller's one id.

use std::collections::BTreeSet;
use std::io;

use super::{IdBlocks, SharedTable, Subordinates, root_blocks};
use crate::kernel::config::KernelConfig;
use crate::kernel::hands::Hands;
use crate::kernel::plan::IdMode;

pub(crate) enum IdSource {
    Root,
    Subordinate {
        ids: Subordinates,
        hands: Hands,
    },
    /// With the reason, as advice.
    Caller {
        why: String,
    },
}

impl IdSource {
    pub(crate) fn find(config: &KernelConfig, privileged: bool) -> Self {
        if privileged {
            return Self::Root;
        }
        match Hands::mapped(&config.helper) {
            Ok((hands, ids)) => Self::Subordinate { ids, hands },
            Err(why) => Self::Caller { why },
        }
    }

    /// The books of blocks.
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

    /// Whether there are any blocks.
    pub(crate) fn has_blocks(&self) -> bool {
        !matches!(self, Self::Caller { .. })
    }

    /// A block by its first uid; `None` when it is not one that this host gives out.
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

    /// Who can remove and measure what sandboxes wrote.
    pub(crate) fn hands(&self) -> &Hands {
        match self {
            Self::Subordinate { hands, .. } => hands,
            Self::Root | Self::Caller { .. } => &Hands::Own,
        }
    }
}
