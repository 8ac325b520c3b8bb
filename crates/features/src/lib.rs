//! This crate has no code: it only unifies the dependency features of the workspace. `make generate` updates them.
