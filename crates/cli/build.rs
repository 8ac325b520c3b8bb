//! Puts the static `sandboxd` (built first, by the Makefile) where the CLI includes it. Without one an empty file takes its place, and
//! the CLI then looks for `sandboxd` beside itself.

use std::{env, fs, io, path::PathBuf};

const SOURCE: &str = "AGENT_SANDBOX_SANDBOXD";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-env-changed={SOURCE}");
    let folder = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets OUT_DIR"))?;
    let target = PathBuf::from(folder).join("sandboxd");
    let source = env::var_os(SOURCE).map(PathBuf::from);
    match source {
        Some(source) => {
            println!("cargo:rerun-if-changed={}", source.display());
            if source.is_file() { fs::copy(source, target).map(drop) } else { fs::write(target, b"") }
        }
        None => fs::write(target, b""),
    }
}
