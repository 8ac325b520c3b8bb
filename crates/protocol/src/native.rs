//! The native API under `/sandbox/v1`: commands with streaming and re-attachment, files, tar, watches, ports, usage.
