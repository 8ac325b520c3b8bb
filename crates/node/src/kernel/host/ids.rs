//! Blocks of user ids for Pods: each owner keeps its block, so that a resumed Pod still owns its files. No two nodes of
//! one machine use the same block: a table shared by all nodes records which data folder has which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::kernel::storage::layers;
use crate::kernel::supervisor::plan::BLOCK_SIZE;
use crate::persistent_map::PersistentMap;

mod source;
pub(crate) mod subordinate;
mod table;

pub(crate) use source::IdSource;

pub(crate) use subordinate::Subordinates;
pub(crate) use table::SharedTable;

/// Maximum number of blocks leased from the shared table at a time, so that most Pods need not lock it.
const LEASE: usize = 32;

/// A lease takes at most one part in this many of all blocks, so that the first node leaves enough for the next ones.
const LEASE_SHARE: usize = 8;

/// The blocks of this node and their owners. An assignment is saved before the block is used.
pub(crate) struct IdBlocks {
    ledger: PersistentMap,
    /// First ids of the usable blocks: those that overlap no subordinate range of the host.
    usable: BTreeSet<u32>,
    taken: BTreeMap<String, u32>,
    /// Blocks leased by this node and not assigned to an owner.
    spare: BTreeSet<u32>,
    /// Where the next search starts, so that a freed block is reused as late as possible.
    next: u32,
    table: SharedTable,
}

/// The result of asking for an owner's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Block {
    /// The owner's block. `fresh`: it was assigned just now, and is not yet synced to disk.
    Has { first: u32, fresh: bool },
    /// All blocks are taken.
    None,
}

impl IdBlocks {
    pub(crate) fn open(data_dir: &Path, usable: BTreeSet<u32>, table: SharedTable) -> io::Result<Self> {
        let ledger = PersistentMap::open(data_dir.join("ids.ledger"), &data_dir.join("ids"))?;
        let known = ledger.entries().iter();
        let taken: BTreeMap<_, _> = known.filter_map(|(key, text)| Some((key.clone(), text.parse().ok()?))).collect();
        table.claim(&taken.values().copied().collect::<Vec<_>>())?;
        // Each data folder starts at another block, so that nodes that never ran at the same time seldom use the same
        // blocks.
        let start = table.node_number() as usize % usable.len().max(1);
        let next = usable.iter().nth(start).copied().unwrap_or_default();
        Ok(Self { ledger, usable, taken, spare: BTreeSet::new(), next, table })
    }

    /// Returns the owner's block, assigning one if it has none.
    pub(crate) fn block_of(&mut self, owner: &str) -> io::Result<Block> {
        if let Some(first) = self.taken.get(owner) {
            return Ok(Block::Has { first: *first, fresh: false });
        }
        let Some(first) = self.reserve()? else { return Ok(Block::None) };
        if let Err(error) = self.assign(owner, first) {
            self.unreserve(first);
            return Err(error);
        }
        Ok(Block::Has { first, fresh: true })
    }

    /// Reserves a block for an owner that is not known yet; `None` when all are taken.
    pub(crate) fn reserve(&mut self) -> io::Result<Option<u32>> {
        if self.spare.is_empty() {
            let from_next = self.usable.range(self.next..).chain(self.usable.range(..self.next)).copied();
            let most = (self.usable.len() / LEASE_SHARE).clamp(1, LEASE);
            self.spare.extend(self.table.lease(from_next, most)?);
        }
        let from_next = self.spare.range(self.next..).chain(self.spare.range(..self.next));
        let Some(first) = from_next.copied().next() else { return Ok(None) };
        self.spare.remove(&first);
        self.next = first.saturating_add(1);
        Ok(Some(first))
    }

    /// Assigns a reserved block to an owner.
    pub(crate) fn assign(&mut self, owner: &str, first: u32) -> io::Result<()> {
        self.ledger.set(layers::single_component(owner)?, &first.to_string())?;
        self.taken.insert(owner.to_owned(), first);
        Ok(())
    }

    /// Returns a reserved block.
    pub(crate) fn unreserve(&mut self, first: u32) {
        self.spare.insert(first);
    }

    pub(crate) fn has(&self, owner: &str) -> bool {
        self.taken.contains_key(owner)
    }

    /// The file to sync to disk after a fresh assignment.
    pub(crate) fn syncer(&self) -> io::Result<fs::File> {
        self.ledger.sync_handle()
    }

    pub(crate) fn forget(&mut self, owner: &str) -> io::Result<()> {
        let Some(first) = self.taken.get(owner).copied() else { return Ok(()) };
        self.ledger.remove(owner)?;
        self.taken.remove(owner);
        self.spare.insert(first);
        Ok(())
    }

    /// Returns blocks that no owner has to the shared table, for other nodes.
    pub(crate) fn release(&mut self) -> io::Result<()> {
        self.spare.clear();
        self.table.keep_only(&self.taken.values().copied().collect())
    }

    pub(crate) fn owners(&self) -> impl Iterator<Item = &str> {
        self.taken.keys().map(String::as_str)
    }
}

/// Usable blocks of a range, as root: those that overlap no subordinate range of the host.
pub(crate) fn root_blocks(first_id: u32, blocks: u32) -> BTreeSet<u32> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let reserved = parse_ranges(&read("/etc/subuid")).chain(parse_ranges(&read("/etc/subgid"))).collect::<Vec<_>>();
    usable_blocks(first_id, blocks, &reserved)
}

/// `name:first:count` lines as (first, count).
pub(crate) fn parse_ranges(text: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(1);
        Some((fields.next()?.trim().parse().ok()?, fields.next()?.trim().parse().ok()?))
    })
}

fn usable_blocks(first_id: u32, blocks: u32, reserved: &[(u64, u64)]) -> BTreeSet<u32> {
    (0..u64::from(blocks))
        .map(|block| u64::from(first_id) + block * u64::from(BLOCK_SIZE))
        .filter(|start| {
            let end = start + u64::from(BLOCK_SIZE);
            // The last id means "no id" to the kernel.
            end < u64::from(u32::MAX) && reserved.iter().all(|(from, count)| end <= *from || from + count <= *start)
        })
        .filter_map(|start| u32::try_from(start).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_never_overlap_subordinate_ranges() {
        let reserved = parse_ranges("me:165536:65536\nother:300000:10\n# comment\n").collect::<Vec<_>>();
        assert_eq!(reserved, [(165_536, 65_536), (300_000, 10)]);
        // The second block is the range from 165,536; the fourth holds 300,000.
        let usable: Vec<_> = usable_blocks(100_000, 5, &reserved).into_iter().collect();
        assert_eq!(usable, [100_000, 100_000 + 2 * BLOCK_SIZE, 100_000 + 4 * BLOCK_SIZE]);
    }

    #[test]
    fn blocks_stop_before_the_end_of_the_id_space() {
        assert_eq!(usable_blocks(u32::MAX - BLOCK_SIZE - 1, 3, &[]).len(), 1);
    }

    fn open(folder: &Path, node: &str, blocks: u32) -> IdBlocks {
        let data = folder.join(node);
        fs::create_dir_all(&data).unwrap();
        IdBlocks::open(&data, usable_blocks(1 << 30, blocks, &[]), table(folder, &data)).unwrap()
    }

    fn table(folder: &Path, data: &Path) -> SharedTable {
        SharedTable::at(&folder.join("shared"), data, BLOCK_SIZE)
    }

    fn first_of(block: Block) -> u32 {
        match block {
            Block::Has { first, .. } => first,
            Block::None => panic!("no block"),
        }
    }

    #[test]
    fn an_owner_keeps_its_block_over_restarts_and_others_never_get_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut blocks = open(folder.path(), "node", 2);
        let first = first_of(blocks.block_of("a").unwrap());
        let second = first_of(blocks.block_of("b").unwrap());
        assert_eq!(second.abs_diff(first), BLOCK_SIZE);
        assert_eq!(blocks.block_of("c").unwrap(), Block::None, "the range is used up");
        let mut blocks = open(folder.path(), "node", 2);
        assert_eq!(blocks.block_of("a").unwrap(), Block::Has { first, fresh: false });
        blocks.forget("b").unwrap();
        assert_eq!(blocks.block_of("c").unwrap(), Block::Has { first: second, fresh: true });
    }

    #[test]
    fn two_nodes_of_one_machine_never_share_a_block() {
        let folder = tempfile::tempdir().unwrap();
        let blocks = 2 * LEASE as u32;
        let (mut one, mut two) = (open(folder.path(), "one", blocks), open(folder.path(), "two", blocks));
        let mut seen = BTreeSet::new();
        for number in 0..LEASE {
            assert!(seen.insert(first_of(one.block_of(&format!("{number}")).unwrap())));
            assert!(seen.insert(first_of(two.block_of(&format!("{number}")).unwrap())));
        }
        assert_eq!(one.block_of("more").unwrap(), Block::None);
        // A data folder that no longer exists holds no blocks; an existing one keeps its blocks while its node does not
        // run.
        drop((one, two));
        fs::remove_dir_all(folder.path().join("two")).unwrap();
        let mut three = open(folder.path(), "three", blocks);
        for number in 0..LEASE {
            let block = first_of(three.block_of(&format!("{number}")).unwrap());
            assert!(seen.contains(&block));
        }
        assert_eq!(three.block_of("more").unwrap(), Block::None, "the first node's are still its own");
    }

    #[test]
    fn unassigned_blocks_are_returned_to_other_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, mut two) = (open(folder.path(), "one", 2), open(folder.path(), "two", 2));
        one.block_of("a").unwrap();
        two.block_of("a").unwrap();
        one.forget("a").unwrap();
        assert_eq!(two.block_of("b").unwrap(), Block::None, "it is still leased by the first node");
        one.release().unwrap();
        assert!(matches!(two.block_of("b").unwrap(), Block::Has { .. }));
    }

    #[test]
    fn a_block_that_another_node_has_taken_meanwhile_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = open(folder.path(), "one", 1);
        one.block_of("a").unwrap();
        drop(one);
        // The shared table is lost at a reboot, the data folders are not.
        fs::remove_dir_all(folder.path().join("shared")).unwrap();
        let mut two = open(folder.path(), "two", 1);
        two.block_of("a").unwrap();
        let data = folder.path().join("one");
        let again = IdBlocks::open(&data, usable_blocks(1 << 30, 1, &[]), table(folder.path(), &data));
        let text = again.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("two"), "{text}");
    }
}
