//! Keeps the resident memory of the process small.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::cache::Store;

/// Idle time before code pages are released.
const IDLE_BEFORE_RELEASE: Duration = Duration::from_secs(3);

/// Disables transparent huge pages: the controller touches little of what its allocator reserves, and a page of two
/// megabytes counts whole for one object in it.
pub(crate) fn disable_huge_pages() {
    pages::disable_huge();
}

/// After the start and after every burst of changes, once the controller is idle, releases the pages of the program
/// that only the burst (or the start) needed. They are read from the program's file on the next access, so nothing is
/// lost; they count as resident memory for as long as they are mapped.
pub(crate) async fn release_code_pages_when_idle(store: Arc<Store>, stop: CancellationToken) {
    let release_loop = async {
        loop {
            tokio::time::sleep(IDLE_BEFORE_RELEASE).await;
            if !store.take_changed() {
                release_code_pages();
                store.wait_for_change().await;
            }
        }
    };
    tokio::select! {
        () = release_loop => {}
        () = stop.cancelled() => {}
    }
}

/// Drops the mapped code and constants of the program and its libraries (`MADV_DONTNEED`); what is used next comes back
/// from the page cache.
pub fn release_code_pages() {
    pages::release_code_pages();
}

#[cfg(target_os = "linux")]
mod pages {
    #![expect(unsafe_code, reason = "the kernel is asked through libc")]

    use std::ffi::{c_int, c_void};

    pub(super) fn disable_huge() {
        // SAFETY: only changes how the kernel backs this process's memory; where it cannot, nothing changes.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    }

    pub(super) fn release_code_pages() {
        // SAFETY: the callback has the type that is asked for and looks at nothing but what it is given.
        unsafe { libc::dl_iterate_phdr(Some(release_object), std::ptr::null_mut()) };
    }

    unsafe extern "C" fn release_object(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        // SAFETY: the loader hands out a valid description for the length of the call.
        let info = unsafe { &*info };
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: as above; the headers stay mapped for as long as the object does.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        // Segments that can be written, even if only by the loader, hold data that is not in the file.
        for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0)
        {
            release_range(info.dlpi_addr.wrapping_add(header.p_vaddr), header.p_memsz);
        }
        0
    }

    /// Releases the whole pages inside a range that holds only unmodified file contents.
    fn release_range(start: u64, length: u64) {
        const PAGE: u64 = 4096;
        let (first, end) = (start.next_multiple_of(PAGE), (start + length) / PAGE * PAGE);
        if let (Ok(first), Ok(length)) = (usize::try_from(first), usize::try_from(end.saturating_sub(first)))
            && length > 0
        {
            // SAFETY: the pages are an unmodified private mapping of a file: reading them again gives the same bytes.
            // Where the kernel refuses, nothing changes.
            unsafe { libc::madvise(std::ptr::without_provenance_mut(first), length, libc::MADV_DONTNEED) };
        }
    }

    #[cfg(test)]
    mod tests {
        /// A table of constants, a page and more of it.
        static CONSTANTS: [u32; 4096] = {
            let mut table = [0; 4096];
            let mut at = 0;
            while at < table.len() {
                table[at] = at as u32 * 7;
                at += 1;
            }
            table
        };

        #[test]
        fn a_program_continues_after_its_code_pages_were_released() {
            for _ in 0..3 {
                super::release_code_pages();
                let sum: u32 = std::hint::black_box(&CONSTANTS).iter().sum();
                assert_eq!(sum, 7 * 4095 * 4096 / 2);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod pages {
    pub(super) fn disable_huge() {}

    pub(super) fn release_code_pages() {}
}
