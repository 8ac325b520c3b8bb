//! Keeping the process small.

/// Asks for small pages: a controller touches little of what its allocator sets aside, and a page of two megabytes counts whole for one
/// object in it.
pub(crate) fn use_small_pages() {
    pages::use_small();
}

#[cfg(target_os = "linux")]
mod pages {
    #![expect(unsafe_code, reason = "the kernel is asked through libc")]

    pub(super) fn use_small() {
        // SAFETY: only changes how the kernel backs this process's memory; where it cannot, nothing changes.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    }
}

#[cfg(not(target_os = "linux"))]
mod pages {
    pub(super) fn use_small() {}
}
