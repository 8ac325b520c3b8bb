//! Returns memory to the kernel after a burst of activity.

#![expect(unsafe_code, reason = "letting go of the program's own code")]

mod allocator;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub use allocator::Allocator;

/// Delay between the last activity and the release; also the shortest time between two releases.
const IDLE_DELAY: Duration = Duration::from_secs(5);

/// Releases unneeded memory a while after start-up (which needs much that serving does not) and after each burst of
/// activity; sleeps while there is none. A sandbox that is used at once, or ends soon, never pays for it.
pub(crate) async fn release_when_idle(activity: Arc<Notify>) {
    loop {
        tokio::time::sleep(IDLE_DELAY).await;
        allocator::trim();
        drop_code_pages();
        activity.notified().await;
    }
}

/// Drops the pages of the program's code. Pages that are needed again come back from the page cache, which all
/// sandboxes of a machine share, within a microsecond; those that were needed only at start-up do not come back.
fn drop_code_pages() {
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

/// The address range of a line of `/proc/self/maps`, if it is executable and not writable.
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
        drop_code_pages();
        assert_eq!(executable_range(&line("r-xp")), Some((0x7f00, 0x8f00)), "we still run");
    }
}
