//! The node's helper as a separate program, for embedders that cannot call `helper_main` first in `main`, such as test
//! harnesses.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent_sandbox_node::helper_main();
    eprintln!("this program is a helper that the node starts; it cannot be run directly");
    ExitCode::from(2)
}
