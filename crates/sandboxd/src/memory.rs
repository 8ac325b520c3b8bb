//! Giving memory back: a sandbox that did much once should not hold it forever.

#![expect(unsafe_code, reason = "letting go of the program's own code")]

mod allocator;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub use allocator::Allocator;

/// Between the last activity seen and returning what is free; also the shortest time between two returns.
const QUIET: Duration = Duration::from_secs(5);

/// Returns what is not needed to the kernel, a while after the start (which needs much that serving does not) and after each burst of
/// activity; sleeps as long as there is none. A sandbox that is used at once, or ends soon, never pays for it.
pub(crate) async fn give_back(activity: Arc<Notify>) {
    loop {
        tokio::time::sleep(QUIET).await;
        allocator::trim();
        unmap_code();
        activity.notified().await;
    }
}

/// Lets go of the program's own code: pages that are used again come back from the page cache, which every sandbox of a
/// machine shares, within a microsecond; those that served the start only stay away.
fn unmap_code() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Ok(program) = std::fs::read_link("/proc/self/exe") else { return };
    for line in maps.lines().filter(|line| program.to_str().is_some_and(|program| line.ends_with(program))) {
        let Some((start, end)) = executable_range(line) else { continue };
        // SAFETY: code is mapped from the program's file and never written, so that every page can be read again.
        let _ = unsafe {
            rustix::mm::madvise(
                std::ptr::with_exposed_provenance_mut(start),
                end - start,
                rustix::mm::Advice::LinuxDontNeed,
            )
        };
    }
}

/// The addresses of a line of `/proc/self/maps`, if it is of code that cannot be written.
fn executable_range(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    if words.next()? != "r-xp" {
        return None;
    }
    let parse = |text| usize::from_str_radix(text, 16).ok();
    parse(start).zip(parse(end)).filter(|(start, end)| start < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_that_cannot_be_written_is_let_go_of() {
        let line = |rights| format!("7f00-8f00 {rights} 00001000 fe:00 42   /bin/sandboxd");
        assert_eq!(executable_range(&line("r-xp")), Some((0x7f00, 0x8f00)));
        for rights in ["r--p", "rw-p", "rwxp", "r-xs"] {
            assert_eq!(executable_range(&line(rights)), None, "{rights}");
        }
        assert_eq!(executable_range("nonsense"), None);
        unmap_code();
        assert_eq!(executable_range(&line("r-xp")), Some((0x7f00, 0x8f00)), "we still run");
    }
}
