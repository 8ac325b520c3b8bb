//! Subordinate ids (`/etc/subuid`, `/etc/subgid`) of an ordinary user: parsing, cutting into blocks, and entering a
//! user namespace that maps them. Only `newuidmap` and `newgidmap` may map them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::kernel::supervisor::plan::BLOCK_SIZE;
use crate::kernel::sys::{self, Fork};

/// Minimum number of whole blocks (65,536 ids): with fewer, small blocks are cut instead, to have enough sandboxes.
const ENOUGH_BLOCKS: usize = 16;

/// Size of a small block: enough for the ids that distributions give to system users and to the first people, and
/// `nobody`.
const SMALL_BLOCK: u32 = 2_048;

/// Ranges of host ids: first id and count.
type Ranges = Vec<(u32, u32)>;

/// The subordinate ids of a user, cut into blocks of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subordinates {
    pub(crate) size: u32,
    /// First uid and first gid of each block.
    blocks: Vec<(u32, u32)>,
    uids: Ranges,
    gids: Ranges,
}

impl Subordinates {
    /// The caller's subordinate ids, if they can be used; otherwise the reason, as advice.
    pub(crate) fn of_caller() -> Result<Self, String> {
        let uid = rustix::process::getuid().as_raw();
        for program in ["newuidmap", "newgidmap"] {
            find_program(program)
                .ok_or_else(|| format!("{program} is not installed (Debian and Ubuntu: package uidmap)"))?;
        }
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let name = name_of(uid, &read("/etc/passwd"));
        Self::cut(&read("/etc/subuid"), &read("/etc/subgid"), name.as_deref(), uid)
    }

    /// Cuts the ranges of one user into blocks.
    fn cut(subuid: &str, subgid: &str, name: Option<&str>, uid: u32) -> Result<Self, String> {
        let (uids, gids) = (ranges_of(subuid, name, uid), ranges_of(subgid, name, uid));
        let cut = |size: u32| -> Vec<(u32, u32)> { firsts(&uids, size).into_iter().zip(firsts(&gids, size)).collect() };
        let whole = cut(BLOCK_SIZE);
        let (size, blocks) =
            if whole.len() >= ENOUGH_BLOCKS { (BLOCK_SIZE, whole) } else { (SMALL_BLOCK, cut(SMALL_BLOCK)) };
        if blocks.is_empty() {
            return Err(format!(
                "your user has fewer than {SMALL_BLOCK} ids in /etc/subuid and /etc/subgid (usermod --add-subuids, --add-subgids)"
            ));
        }
        Ok(Self { size, blocks, uids, gids })
    }

    /// First uids of all blocks.
    pub(crate) fn first_uids(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().map(|(uid, _)| *uid)
    }

    /// The first gid of the block with this first uid.
    pub(crate) fn first_gid(&self, first_uid: u32) -> Option<u32> {
        self.blocks.iter().find(|(uid, _)| *uid == first_uid).map(|(_, gid)| *gid)
    }

    /// Enters a user namespace in which the caller is root and every subordinate id is mapped.
    pub(crate) fn enter_all(&self) -> io::Result<()> {
        enter(&self.uids, &self.gids)
    }
}

/// Enters a user namespace in which the caller is root and the ranges are mapped from 1 on. The caller must be
/// single-threaded.
pub(crate) fn enter(uids: &[(u32, u32)], gids: &[(u32, u32)]) -> io::Result<()> {
    let own = std::process::id();
    let uid_map = arguments(rustix::process::getuid().as_raw(), uids);
    let gid_map = arguments(rustix::process::getgid().as_raw(), gids);
    let (begin_read, begin_write) = sys::pipe()?;
    let (error_read, error_write) = sys::pipe()?;
    // The two programs lose their privileges inside the new namespace, so a child that stays outside runs them.
    let child = match sys::fork_with(0)? {
        Fork::Child => {
            drop((begin_write, error_read));
            let begun = rustix::io::read(&begin_read, &mut [0u8; 1]).is_ok_and(|length| length == 1);
            let map = || run_mapper("newuidmap", own, &uid_map).and_then(|()| run_mapper("newgidmap", own, &gid_map));
            if let Some(error) = begun.then(map).and_then(Result::err) {
                let _ = rustix::io::write(&error_write, error.to_string().as_bytes());
            }
            sys::exit_now(0)
        }
        Fork::Parent(pid) => pid,
    };
    drop((begin_read, error_write));
    let entered = sys::unshare(libc::CLONE_NEWUSER);
    if entered.is_ok() {
        let _ = rustix::io::write(&begin_write, &[1]);
    }
    drop(begin_write);
    let mut message = String::new();
    io::Read::read_to_string(&mut fs::File::from(error_read), &mut message)?;
    sys::wait_for(child)?;
    entered?;
    if message.is_empty() { Ok(()) } else { Err(io::Error::other(message)) }
}

/// Arguments `inside outside count` for the caller's own id and every range.
fn arguments(own: u32, ranges: &[(u32, u32)]) -> Vec<String> {
    let mut inside = 1;
    let mut words = vec![0, own, 1];
    for (first, count) in ranges {
        words.extend([inside, *first, *count]);
        inside += count;
    }
    words.iter().map(u32::to_string).collect()
}

fn run_mapper(program: &str, pid: u32, map: &[String]) -> io::Result<()> {
    let path = find_program(program).ok_or_else(|| io::Error::other(format!("{program} is not installed")))?;
    let output =
        Command::new(path).arg(pid.to_string()).args(map).stdin(Stdio::null()).stdout(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Searches system folders only: a setuid program is not looked up in the caller's `PATH`.
fn find_program(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.is_file())
}

/// The user's name in `/etc/passwd`.
fn name_of(uid: u32, passwd: &str) -> Option<String> {
    let number = uid.to_string();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(number.as_str()))?;
    line.split(':').next().map(str::to_owned)
}

/// The ranges of one user, by name or number.
fn ranges_of(text: &str, name: Option<&str>, uid: u32) -> Ranges {
    let number = uid.to_string();
    let own = |line: &&str| line.split(':').next().is_some_and(|who| Some(who) == name || who == number);
    let lines = text.lines().filter(own).collect::<Vec<_>>().join("\n");
    let narrow = |(first, count): (u64, u64)| Some((u32::try_from(first).ok()?, u32::try_from(count).ok()?));
    super::parse_ranges(&lines)
        .filter_map(narrow)
        .filter(|(first, count)| first.checked_add(*count).is_some())
        .collect()
}

/// First ids of the blocks of a size that fit into the ranges.
fn firsts(ranges: &[(u32, u32)], size: u32) -> Vec<u32> {
    ranges.iter().flat_map(|(first, count)| (0..count / size).map(move |block| first + block * size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ids_give_whole_blocks_and_few_give_small_ones() {
        let many = Subordinates::cut("me:100000:1048576\n", "me:200000:1048576\n", Some("me"), 1000).unwrap();
        assert_eq!((many.size, many.blocks.len(), many.blocks[1]), (65_536, 16, (165_536, 265_536)));
        assert_eq!((many.first_gid(165_536), many.first_gid(7)), (Some(265_536), None));
        // Debian's default for each user.
        let few = Subordinates::cut("me:100000:65536\n", "1000:100000:65536\n", Some("me"), 1000).unwrap();
        assert_eq!((few.size, few.blocks.len(), few.blocks[1]), (2_048, 32, (102_048, 102_048)));
    }

    #[test]
    fn only_the_users_own_lines_count_and_both_lists_must_have_one() {
        let other = "you:100000:65536\n# me\nme:x:y\n10001:5:65536\n";
        assert!(Subordinates::cut(other, "me:100000:65536\n", Some("me"), 1000).unwrap_err().contains("/etc/subuid"));
        let uneven = Subordinates::cut("me:100000:4096\nme:300000:2048\n", "me:1:65536\n", Some("me"), 1000).unwrap();
        assert_eq!(uneven.first_uids().collect::<Vec<_>>(), [100_000, 102_048, 300_000]);
    }

    #[test]
    fn the_caller_is_root_and_ranges_follow() {
        assert_eq!(arguments(1000, &[(100, 10), (500, 5)]).join(" "), "0 1000 1 1 100 10 11 500 5");
        assert_eq!(name_of(7, "a:x:1:1::/:\nb:x:7:7::/:\n").as_deref(), Some("b"));
    }
}
