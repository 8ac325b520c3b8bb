//! `sandboxd`: the daemon in each sandbox.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: agent_sandbox_sandboxd::Allocator = agent_sandbox_sandboxd::Allocator;

fn main() -> ExitCode {
    agent_sandbox_sandboxd::main_with(std::env::args_os().skip(1))
}
