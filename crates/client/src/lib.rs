//! The Rust SDK: claims, sandboxes, commands, files; base of the CLI and of the Python SDK.
