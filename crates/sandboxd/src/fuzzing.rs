//! Fuzz targets: heads, forms, archives, frames and small texts that clients send to the daemon.

#[cfg(test)]
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/request.rs"]
mod input;
#[path = "../../../fuzz/src/tar_checksums.rs"]
mod tar_checksums;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::executor::block_on;
use http::{Request, header};

use crate::core::files::archive;
use crate::core::files::root::Root;
use crate::core::files::search;
use crate::core::paths::{RelPath, decode_once, unescape_form_name};
use crate::core::processes::users;
use crate::dialects::{envd, native, runtime};
use crate::http_io::body::Body;
use crate::http_io::download;
use crate::http_io::form::Form;
use crate::server;

/// A function that gets any bytes and panics if they are handled wrongly.
pub type Target = fn(&[u8]);

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] = &[
    ("sandboxd-head", head),
    ("sandboxd-form", form),
    ("sandboxd-tar", tar),
    ("sandboxd-paths", paths),
    ("sandboxd-patterns", patterns),
    ("sandboxd-words", runtime::fuzz),
    ("sandboxd-users", users::fuzz),
    ("envd-frames", envd::fuzz_frames),
];

/// The body in packets of `step` bytes.
pub(crate) fn packets(step: u8, bytes: &[u8]) -> Body {
    let parts: Vec<Result<Bytes, Infallible>> =
        bytes.chunks(usize::from(step).max(1)).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
    Body::from_stream(futures::stream::iter(parts))
}

/// The bytes are a request: everything that is decided from its head is decided.
fn head(data: &[u8]) {
    let Some(request) = input::request(data) else { return };
    let request = request.map(Body::from);
    server::fuzz(&request);
    native::fuzz(&request);
    envd::fuzz_head(&request);
    download::fuzz(&request);
}

/// The first byte is the size of the packets, the first line the content type, and the rest the form.
fn form(data: &[u8]) {
    let Some((step, rest)) = data.split_first() else { return };
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return };
    let request = Request::builder().header(header::CONTENT_TYPE, &rest[..end]);
    let Ok(request) = request.body(packets(*step, &rest[end + 1..])) else { return };
    let Ok(mut form) = Form::of(request) else { return };
    block_on(async {
        let mut size = 0;
        while let Ok(Some(part)) = form.next().await {
            if let Some(name) = part.file_name {
                let _ = unescape_form_name(&name);
            }
            while let Ok(Some(chunk)) = form.chunk().await {
                assert!(!chunk.is_empty());
                size += chunk.len();
            }
        }
        assert!(size <= rest.len(), "a form became longer while it was read");
    });
}

/// A folder with another one to unpack into, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("sandboxd-fuzz-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(folder.join("root")).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The bytes are an archive. Nothing may appear beside the folder that it is unpacked into.
fn tar(data: &[u8]) {
    let folder = Folder::new();
    let root = Root::open(&folder.0.join("root")).expect("a root");
    let into = RelPath::parse(b"a").expect("a path");
    let _ = archive::unpack(&root, &into, tar_checksums::with_checksums(data).as_slice());
    let names: Vec<_> = std::fs::read_dir(&folder.0).expect("a folder").flatten().map(|one| one.file_name()).collect();
    assert_eq!(names, ["root"]);
}

/// The bytes are a path in a URL.
fn paths(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(path) = RelPath::parse(&decode_once(text)) else { return };
    for component in path.components() {
        let bytes = component.as_bytes();
        assert!(!bytes.is_empty() && bytes != b"." && bytes != b".." && !bytes.contains(&b'/'));
    }
    assert_eq!(RelPath::parse(&path.to_bytes()).as_ref(), Ok(&path));
    let _ = (path.display(), path.below(&path), path.file_name());
}

/// The bytes are a glob, and a regular expression.
fn patterns(data: &[u8]) {
    let Ok(pattern) = std::str::from_utf8(data) else { return };
    if let Ok(glob) = search::glob(pattern) {
        let _ = glob.is_match("a/b/.c-d.txt");
    }
    for ignore_case in [false, true] {
        if let Ok(regex) = search::regex(pattern, ignore_case) {
            let _ = regex.is_match(b"one line of text, aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_pass() {
        super::corpus::replay(super::TARGETS);
    }
}
