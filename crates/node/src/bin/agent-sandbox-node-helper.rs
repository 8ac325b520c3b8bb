//! The node's helper as a program of its own, for embedders whose `main` is not theirs to start with `helper_main`, such
//! as test harnesses.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent_sandbox_node::helper_main();
    eprintln!("this program is started by the node, not by people");
    ExitCode::from(2)
}
