//! gRPC messages and service definitions, generated from `proto/` by `make generate`.

macro_rules! generated {
    ($(#[$documentation:meta])* $name:ident, $file:literal) => {
        $(#[$documentation])*
        #[allow(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated code")]
        pub mod $name {
            include!(concat!("grpc/generated/", $file));
        }
    };
}

generated!(
    /// `process.v1`: the sandboxd dialect's process service.
    process,
    "process.v1.rs"
);
generated!(
    /// `sandbox.attach.v1`: our own service for re-attaching.
    attach,
    "sandbox.attach.v1.rs"
);
generated!(
    /// `grpc.reflection.v1`.
    reflection,
    "grpc.reflection.v1.rs"
);
generated!(
    /// `grpc.health.v1`.
    health,
    "grpc.health.v1.rs"
);

/// The services' descriptors (a `FileDescriptorSet`), for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("grpc/generated/descriptors.bin");
