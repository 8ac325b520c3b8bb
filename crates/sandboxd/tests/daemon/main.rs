//! The daemon from outside: the real binary, real sockets, every dialect.

#![expect(clippy::panic, clippy::print_stdout, reason = "a test that cannot go on says why")]

mod client;
mod code;
mod confinement;
mod envd;
mod examples;
mod fixture;
mod grpc;
mod history;
mod idempotency;
mod inherited_sockets;
mod malformed_requests;
mod memory;
mod native_exec;
mod native_files;
mod native_openapi;
mod pid_one;
mod router_tokens;
mod runtime_execute;
mod runtime_files;
mod sdk;

mod web_pages;
mod workspace_rest;
