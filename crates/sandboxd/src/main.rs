//! `sandboxd`: the daemon in each sandbox.

fn main() {}
