//! A `bytes` object that is filled while its content is received, which saves a second copy of a large file.
#![expect(
    unsafe_code,
    reason = "the object's memory is written without the GIL, before any other code has a reference to it"
)]

use pyo3::{ffi, prelude::*, types::PyBytes};
use std::{io, ptr::NonNull};

/// Minimum size for huge pages: a page fault for every 4 KiB costs as much as the copying itself.
const HUGE_PAGE_THRESHOLD: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// A `bytes` object of a known length, and how much of it has been written.
pub(crate) struct Content {
    object: Py<PyBytes>,
    start: NonNull<u8>,
    length: usize,
    filled: usize,
    /// Content beyond the announced length, or all content when no length was announced.
    rest: Vec<u8>,
}

// SAFETY: the memory belongs to `object`, which is kept alive and to which no other reference exists before
// `into_object`.
unsafe impl Send for Content {}

impl Content {
    pub(crate) fn of_length(length: usize) -> io::Result<Self> {
        let made = Python::try_attach(|py| Self::allocate(py, length));
        made.unwrap_or_else(|| Err(io::Error::other("the interpreter is shutting down")))
    }

    fn allocate(py: Python<'_>, length: usize) -> io::Result<Self> {
        let size = ffi::Py_ssize_t::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: without a source the call creates an object of that length, or raises.
        let object =
            unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), size)) };
        let object = object.and_then(|object| Ok(object.cast_into::<PyBytes>()?));
        let object = object.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        // SAFETY: the object was just created and is a `bytes`.
        let start = NonNull::new(unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast::<u8>());
        let start = start.ok_or(io::ErrorKind::OutOfMemory)?;
        prefer_huge_pages(start, length);
        Ok(Self { object: object.unbind(), start, length, filled: 0, rest: Vec::new() })
    }

    /// The object with all content that was received.
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.filled == self.length && self.rest.is_empty() {
            return Ok(self.object.into_any());
        }
        // Uninitialised memory must not be exposed, so the written part is copied.
        // SAFETY: `filled` bytes from `start` on were written by `write`.
        let written = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.filled) };
        let all = PyBytes::new_with(py, written.len() + self.rest.len(), |memory| {
            let (front, back) = memory.split_at_mut(written.len());
            front.copy_from_slice(written);
            back.copy_from_slice(&self.rest);
            Ok(())
        })?;
        Ok(all.into_any().unbind())
    }
}

impl io::Write for Content {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.filled == self.length {
            self.rest.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        let count = bytes.len().min(self.length - self.filled);
        // SAFETY: `filled + count` is within the object's memory, to which this is the only reference.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(self.filled), count) };
        self.filled += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Asks for huge pages for the aligned part of the object's memory. The result is ignored: a kernel without huge pages
/// uses small ones.
fn prefer_huge_pages(start: NonNull<u8>, length: usize) {
    if length < HUGE_PAGE_THRESHOLD {
        return;
    }
    let begin = (start.as_ptr() as usize).next_multiple_of(HUGE_PAGE);
    let end = (start.as_ptr() as usize + length) & !(HUGE_PAGE - 1);
    // SAFETY: the range lies within the object's memory, and the advice does not change its content.
    unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_HUGEPAGE) };
}
