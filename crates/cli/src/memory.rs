//! Keeping a process that runs for long small: what only its start needed goes back to the system.

#![expect(unsafe_code, reason = "the allocator and the kernel are asked through C")]

use libmimalloc_sys::{mi_collect, mi_option_get, mi_option_set, mi_option_t};
use std::{fs, ops::Range};

/// Milliseconds that freed memory is kept for its next use. The binding has no name for it.
const PURGE_DELAY: mi_option_t = 15;

/// From now until [`settled`], memory is given back as soon as it is free: a start frees far more than it keeps.
pub(crate) struct Start {
    usual_delay: std::ffi::c_long,
}

impl Start {
    pub(crate) fn begin() -> Self {
        // SAFETY: options are plain numbers that may be read and written at any time.
        let usual_delay = unsafe { mi_option_get(PURGE_DELAY) };
        // SAFETY: as above.
        unsafe { mi_option_set(PURGE_DELAY, 0) };
        Self { usual_delay }
    }

    /// The start is over: its memory and the code that only it ran are let go of.
    pub(crate) fn settled(self) {
        // SAFETY: options may be written and free memory collected at any time.
        unsafe {
            mi_option_set(PURGE_DELAY, self.usual_delay);
            mi_collect(true);
        }
        let mappings = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let program = fs::read_link("/proc/self/exe").unwrap_or_default();
        for range in unchanging(&mappings, &program.to_string_lossy()) {
            // SAFETY: pages of a file that were never written to come back from the file when they are next touched.
            unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), libc::MADV_DONTNEED) };
        }
    }
}

/// The parts of `program` in memory that hold what its file holds: code and constants that nobody has written to.
fn unchanging(mappings: &str, program: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in mappings.lines() {
        if let Some((range, rest)) = mapping(line) {
            let file = rest.split_ascii_whitespace().nth(4);
            current = (!rest.starts_with("rw") && file == Some(program)).then_some(range);
        } else if line.starts_with("Anonymous:") && line.split_ascii_whitespace().nth(1) == Some("0") {
            found.extend(current.take());
        }
    }
    found
}

/// The first line of a mapping: its addresses, and the rest.
fn mapping(line: &str) -> Option<(Range<usize>, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?..address(end)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_program_s_file_can_give_back_is_let_go_of() {
        let mappings = "\
5000-6000 r--p 00000000 fe:00 42                       /usr/bin/agent-sandbox
Size:                  4 kB
Anonymous:             0 kB
6000-9000 r-xp 00001000 fe:00 42                       /usr/bin/agent-sandbox
Anonymous:             0 kB
9000-a000 r--p 00004000 fe:00 42                       /usr/bin/agent-sandbox
Anonymous:             4 kB
a000-b000 rw-p 00005000 fe:00 42                       /usr/bin/agent-sandbox
Anonymous:             0 kB
c000-d000 r-xp 00000000 fe:00 43                       /usr/lib/libc.so.6
Anonymous:             0 kB
e000-f000 r--p 00000000 00:00 0
Anonymous:             0 kB
";
        assert_eq!(unchanging(mappings, "/usr/bin/agent-sandbox"), [0x5000..0x6000, 0x6000..0x9000]);
    }

    #[test]
    fn a_process_that_let_go_of_its_code_goes_on() {
        let start = Start::begin();
        let kept = vec![7_u8; 1 << 20];
        start.settled();
        assert!(kept.iter().all(|byte| *byte == 7));
        let shown = format!("{:?}", std::time::Duration::from_millis(kept.len() as u64));
        assert_eq!(shown, "1048.576s");
    }
}
