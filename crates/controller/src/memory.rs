//! Keeping the process small.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::store::Store;

/// How long nothing must have happened before memory is given back.
const QUIET: Duration = Duration::from_secs(3);

/// Asks for small pages: a controller touches little of what its allocator sets aside, and a page of two megabytes counts whole for one
/// object in it.
pub(crate) fn use_small_pages() {
    pages::use_small();
}

/// After the start and after every burst of news, once it is quiet again, gives back the pages of the program that only the burst (or the start) needed. They
/// are read from the program's file and can be again, so nothing is lost; they count as ours for as long as they are mapped.
pub(crate) async fn give_back_when_quiet(store: Arc<Store>, stop: CancellationToken) {
    let burst_and_rest = async {
        loop {
            tokio::time::sleep(QUIET).await;
            if !store.take_news() {
                forget_code();
                store.news().await;
            }
        }
    };
    tokio::select! {
        () = burst_and_rest => {}
        () = stop.cancelled() => {}
    }
}

/// Unmaps the code and constants of the program and its libraries; what is used next comes back from the page cache.
pub fn forget_code() {
    pages::forget_code();
}

#[cfg(target_os = "linux")]
mod pages {
    #![expect(unsafe_code, reason = "the kernel is asked through libc")]

    use std::ffi::{c_int, c_void};

    pub(super) fn use_small() {
        // SAFETY: only changes how the kernel backs this process's memory; where it cannot, nothing changes.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    }

    pub(super) fn forget_code() {
        // SAFETY: the callback has the type that is asked for and looks at nothing but what it is given.
        unsafe { libc::dl_iterate_phdr(Some(forget_object), std::ptr::null_mut()) };
    }

    unsafe extern "C" fn forget_object(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        // SAFETY: the loader hands out a valid description for the length of the call.
        let info = unsafe { &*info };
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: as above; the headers stay mapped for as long as the object does.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        // Segments that can be written, even if only by the loader, hold what is not in the file.
        for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0)
        {
            forget_range(info.dlpi_addr.wrapping_add(header.p_vaddr), header.p_memsz);
        }
        0
    }

    /// The whole pages inside a range that holds nothing but what its file holds.
    fn forget_range(start: u64, length: u64) {
        const PAGE: u64 = 4096;
        let (first, end) = (start.next_multiple_of(PAGE), (start + length) / PAGE * PAGE);
        if let (Ok(first), Ok(length)) = (usize::try_from(first), usize::try_from(end.saturating_sub(first)))
            && length > 0
        {
            // SAFETY: the pages are an unmodified private mapping of a file: reading them again gives the same bytes. Where the kernel
            // refuses, nothing changes.
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
        fn a_program_goes_on_after_its_code_was_forgotten() {
            for _ in 0..3 {
                super::forget_code();
                let sum: u32 = std::hint::black_box(&CONSTANTS).iter().sum();
                assert_eq!(sum, 7 * 4095 * 4096 / 2);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod pages {
    pub(super) fn use_small() {}

    pub(super) fn forget_code() {}
}
