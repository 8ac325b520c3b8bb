//! Copies the static `sandboxd`, which the Makefile builds first, to where the engine embeds it. Without one the engine
//! embeds an empty file, and looks for `sandboxd` beside the program at run time.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::PathBuf,
};

const SOURCE: &str = "AGENT_SANDBOX_SANDBOXD";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-env-changed={SOURCE}");
    let folder = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets OUT_DIR"))?;
    let target = PathBuf::from(folder).join("sandboxd");
    let source = env::var_os(SOURCE).map(PathBuf::from);
    let mut content = Vec::new();
    if let Some(source) = source {
        println!("cargo:rerun-if-changed={}", source.display());
        if source.is_file() {
            content = fs::read(source)?;
        }
    }
    // Lets the engine recognise a file that it has already written, without reading either.
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    println!("cargo:rustc-env=AGENT_SANDBOX_SANDBOXD_HASH={:016x}", hasher.finish());
    fs::write(target, content)
}
