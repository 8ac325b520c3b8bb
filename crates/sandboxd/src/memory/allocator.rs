//! The daemon's heap. One heap for all threads, because only one thread does most of the work: memory freed by one
//! thread is reused by all. An allocator of our own behaves the same with every C library.

#![expect(unsafe_code, reason = "an allocator hands out raw memory")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;

static HEAP: Mutex<Dlmalloc> = Mutex::new(Dlmalloc::new());

/// The global allocator.
pub struct Allocator;

fn heap() -> MutexGuard<'static, Dlmalloc> {
    // The heap does not panic while it is locked.
    HEAP.lock().unwrap_or_else(PoisonError::into_inner)
}

// SAFETY: every block comes from the one heap, under its lock, and is returned there with the layout it was allocated
// with.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        unsafe { heap().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        unsafe { heap().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise that the block is ours and of this layout.
        unsafe { heap().free(block, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise that the block is ours and of this layout.
        unsafe { heap().realloc(block, layout.size(), layout.align(), size) }
    }
}

/// Returns free memory at the end of the heap to the kernel.
pub(super) fn trim() {
    // SAFETY: releases only memory that is not allocated.
    unsafe { heap().trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_kept_apart_grown_and_zeroed() {
        for align in [1, 16, 64, 4096] {
            let layout = Layout::from_size_align(1000, align).unwrap();
            // SAFETY: each block is used within its layout and freed once.
            unsafe {
                let (first, second) = (Allocator.alloc(layout), Allocator.alloc_zeroed(layout));
                assert_eq!((first.addr() % align, second.addr() % align), (0, 0));
                assert!(first.addr().abs_diff(second.addr()) >= 1000);
                first.write_bytes(7, 1000);
                assert!((0..1000).all(|at| *second.add(at) == 0));
                let first = Allocator.realloc(first, layout, 100_000);
                assert!((0..1000).all(|at| *first.add(at) == 7));
                Allocator.dealloc(first, Layout::from_size_align(100_000, align).unwrap());
                Allocator.dealloc(second, layout);
            }
        }
        trim();
    }
}
