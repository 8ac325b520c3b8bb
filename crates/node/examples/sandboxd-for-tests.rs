//! sandboxd as this crate's tests inject it into Pods; cargo builds examples before it runs tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent_sandbox_sandboxd::main_with(std::env::args_os().skip(1))
}
