//! Blocks of user ids: each owner keeps the one it got, so that a resumed Pod finds its files its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::plan::BLOCK_SIZE;
use super::supervisor::records;

/// Which owner has which block. Saved before a block is used.
pub(crate) struct IdBlocks {
    file: PathBuf,
    first_id: u32,
    /// Blocks that may be used: those that overlap no subordinate range of the host.
    usable: BTreeSet<u32>,
    taken: BTreeMap<String, u32>,
    /// Where the search goes on, so that a freed block is reused as late as possible.
    next: u32,
}

impl IdBlocks {
    pub(crate) fn open(data_dir: &Path, first_id: u32, blocks: u32) -> io::Result<Self> {
        let file = data_dir.join("id-blocks.json");
        let taken: BTreeMap<String, u32> = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let reserved = parse_ranges(&read("/etc/subuid")).chain(parse_ranges(&read("/etc/subgid"))).collect::<Vec<_>>();
        let usable = usable_blocks(first_id, blocks, &reserved);
        let next = taken.values().max().map_or(0, |last| last + 1);
        Ok(Self { file, first_id, usable, taken, next })
    }

    /// The first id of the owner's block; `None` when all are taken.
    pub(crate) fn block_of(&mut self, owner: &str) -> io::Result<Option<u32>> {
        if let Some(block) = self.taken.get(owner) {
            return Ok(Some(self.first_id + block * BLOCK_SIZE));
        }
        let in_use: BTreeSet<u32> = self.taken.values().copied().collect();
        let from_next = self.usable.range(self.next..).chain(self.usable.range(..self.next));
        let Some(block) = from_next.copied().find(|block| !in_use.contains(block)) else { return Ok(None) };
        self.taken.insert(owner.to_owned(), block);
        self.next = block + 1;
        records::replace_durably(&self.file, &self.taken)?;
        Ok(Some(self.first_id + block * BLOCK_SIZE))
    }

    pub(crate) fn forget(&mut self, owner: &str) -> io::Result<()> {
        match self.taken.remove(owner) {
            Some(_) => records::replace_durably(&self.file, &self.taken),
            None => Ok(()),
        }
    }

    pub(crate) fn owners(&self) -> impl Iterator<Item = &str> {
        self.taken.keys().map(String::as_str)
    }
}

/// `name:first:count` lines as (first, count).
fn parse_ranges(text: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(1);
        Some((fields.next()?.trim().parse().ok()?, fields.next()?.trim().parse().ok()?))
    })
}

fn usable_blocks(first_id: u32, blocks: u32, reserved: &[(u64, u64)]) -> BTreeSet<u32> {
    (0..blocks)
        .filter(|block| {
            let start = u64::from(first_id) + u64::from(*block) * u64::from(BLOCK_SIZE);
            let end = start + u64::from(BLOCK_SIZE);
            // The last id means "no id" to the kernel.
            end < u64::from(u32::MAX) && reserved.iter().all(|(from, count)| end <= *from || from + count <= start)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_never_overlap_subordinate_ranges() {
        let reserved = parse_ranges("me:165536:65536\nother:300000:10\n# comment\n").collect::<Vec<_>>();
        assert_eq!(reserved, [(165_536, 65_536), (300_000, 10)]);
        // Blocks start at 100,000: the second is the range from 165,536; the fourth holds 300,000.
        assert_eq!(usable_blocks(100_000, 5, &reserved).into_iter().collect::<Vec<_>>(), [0, 2, 4]);
    }

    #[test]
    fn blocks_stop_before_the_end_of_the_id_space() {
        assert_eq!(usable_blocks(u32::MAX - BLOCK_SIZE - 1, 3, &[]).len(), 1);
    }

    #[test]
    fn an_owner_keeps_its_block_over_restarts_and_others_never_get_it() {
        let folder = tempfile::tempdir().unwrap();
        let open = || IdBlocks::open(folder.path(), 1 << 30, 2).unwrap();
        let mut blocks = open();
        let first = blocks.block_of("a").unwrap().unwrap();
        let second = blocks.block_of("b").unwrap().unwrap();
        assert_eq!(second.abs_diff(first), BLOCK_SIZE);
        assert_eq!(blocks.block_of("c").unwrap(), None, "the range is used up");
        let mut blocks = open();
        assert_eq!(blocks.block_of("a").unwrap(), Some(first));
        blocks.forget("b").unwrap();
        assert_eq!(blocks.block_of("c").unwrap(), Some(second));
    }
}
