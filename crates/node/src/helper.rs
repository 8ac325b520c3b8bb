//! The hook through which this crate re-executes the embedding binary as a supervisor or a set-up helper.

/// Takes over the process when it was started as one of this crate's helpers; otherwise returns at once.
///
/// A binary that embeds the node calls this first in `main`, before it starts a thread or a runtime: helpers fork and
/// change namespaces, which is only sound while the process has a single thread.
pub fn helper_main() {
    crate::kernel::take_over();
}
