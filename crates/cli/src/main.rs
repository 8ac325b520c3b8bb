//! `agent-sandbox`: the one user-facing binary.

fn main() {}
