//! `sandboxd`: the daemon in each sandbox.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent_sandbox_sandboxd::main_with(std::env::args_os().skip(1))
}
