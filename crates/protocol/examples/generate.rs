//! Writes `src/grpc/generated/` from `proto/`. Needs no protoc: the compiler is a Rust library.

use std::path::Path;

use prost::Message;

const PROTOS: [&str; 4] = ["process.proto", "attach.proto", "reflection.proto", "health.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = crate_root.join("src/grpc/generated");
    std::fs::create_dir_all(&out)?;
    let descriptors = protox::compile(PROTOS, [crate_root.join("proto")])?;
    std::fs::write(out.join("descriptors.bin"), strip_sources(descriptors.clone()).encode_to_vec())?;
    tonic_prost_build::configure().out_dir(&out).bytes(".").emit_rerun_if_changed(false).compile_fds(descriptors)?;
    Ok(())
}

/// Reflection needs names and types, not comments and positions.
fn strip_sources(mut set: prost_types::FileDescriptorSet) -> prost_types::FileDescriptorSet {
    for file in &mut set.file {
        file.source_code_info = None;
    }
    set
}
