//! The entry point through which this crate re-executes the embedding binary as a supervisor or another helper.

/// Runs a helper and exits if this process was started as one of this crate's helpers; otherwise returns at once.
///
/// A binary that embeds the node calls this first in `main`, before it starts a thread or a runtime: helpers fork and
/// change namespaces, which is only sound while the process has a single thread.
pub fn helper_main() {
    crate::kernel::run_if_helper();
}
