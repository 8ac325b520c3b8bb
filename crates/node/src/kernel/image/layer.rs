//! Stores one layer: checks the digest of the transferred bytes and of the unpacked content, unpacks into a staging
//! folder and renames it into place.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::unpack::{LayerBounds, unpack};
use crate::kernel::storage::tree;
use crate::runtime::{ImageError, chain};

/// Maximum number of bytes after the end of a layer's last entry. Tools pad to a block size of at most some megabytes.
const MAX_PADDING: u64 = 64 << 20;

/// A reader that hashes what it reads.
struct Hashed<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hash.update(buffer.get(..length).unwrap_or_default());
        Ok(length)
    }
}

impl<R: Read> Hashed<R> {
    fn new(inner: R) -> Self {
        Self { inner, hash: Sha256::new() }
    }

    /// Reads what is left, which should be padding, and returns the digest.
    fn finish(mut self) -> io::Result<String> {
        if io::copy(&mut (&mut self).take(MAX_PADDING + 1), &mut io::sink())? > MAX_PADDING {
            return Err(io::Error::other(format!("more than {MAX_PADDING} bytes follow the end of the archive")));
        }
        Ok(hex_digest(self.hash))
    }
}

fn hex_digest(hash: Sha256) -> String {
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The folder of a layer with this content digest.
pub(super) fn layer_path(images_dir: &Path, diff_id: &str) -> Option<PathBuf> {
    let hex = diff_id.strip_prefix("sha256:")?;
    let valid = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then(|| images_dir.join("layers").join(hex))
}

/// The digests of one layer in an image.
#[derive(Debug, Clone)]
pub(super) struct LayerDigests {
    /// Digest of the bytes as transferred.
    pub(super) digest: String,
    /// Digest of the unpacked tar stream.
    pub(super) diff_id: String,
    pub(super) media_type: String,
}

/// Unpacks a layer that is not in the store yet. It becomes visible only if both digests match.
pub(super) fn store(
    images_dir: &Path,
    reference: &str,
    digests: &LayerDigests,
    stream: impl Read,
    privileged: bool,
) -> Result<PathBuf, ImageError> {
    let bad = |message: String| ImageError::BadLayer { reference: reference.to_owned(), message };
    let target =
        layer_path(images_dir, &digests.diff_id).ok_or_else(|| bad(format!("{} is not a digest", digests.diff_id)))?;
    if target.exists() {
        return Ok(target);
    }
    let step = |name: &'static str| move |source: io::Error| ImageError::Store { step: name.to_owned(), source };
    fs::create_dir_all(images_dir.join("layers")).map_err(step("making the layer folder"))?;
    let staging = Staging::new(&images_dir.join("layers")).map_err(step("making the layer folder"))?;
    let folder = staging.0.join("layer");
    fs::create_dir(&folder).map_err(step("making the layer folder"))?;
    let mut transferred = Hashed::new(stream);
    let contents = {
        let mut contents =
            Hashed::new(decompress(&mut transferred, &digests.media_type).map_err(|e| bad(e.to_string()))?);
        unpack(&mut contents, &folder, LayerBounds::DEFAULT, privileged).map_err(|error| bad(chain(&error)))?;
        contents.finish().map_err(|error| bad(error.to_string()))?
    };
    let bytes = transferred.finish().map_err(|error| bad(error.to_string()))?;
    for (found, wanted, what) in [(bytes, &digests.digest, "layer"), (contents, &digests.diff_id, "layer content")] {
        if found != *wanted {
            let (reference, digest) = (reference.to_owned(), wanted.clone());
            return Err(ImageError::DigestMismatch { reference, what, digest });
        }
    }
    match fs::rename(&folder, &target) {
        // Another pull has stored the same content meanwhile.
        Err(_) if target.exists() => Ok(target),
        other => other.map(|()| target).map_err(step("putting the layer in place")),
    }
}

/// A temporary folder that is removed with its contents, at any depth.
pub(super) struct Staging(pub(super) PathBuf);

impl Staging {
    pub(super) fn new(parent: &Path) -> io::Result<Self> {
        Ok(Self(tempfile::Builder::new().prefix("staging-").tempdir_in(parent)?.keep()))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = tree::remove(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "An unfinished layer could not be removed");
        }
    }
}

fn decompress<'r>(stream: &'r mut impl Read, media_type: &str) -> io::Result<Box<dyn Read + 'r>> {
    if media_type.ends_with("gzip") {
        return Ok(Box::new(flate2::read::MultiGzDecoder::new(stream)));
    }
    if media_type.ends_with("zstd") {
        return Ok(Box::new(zstd::stream::read::Decoder::new(stream)?));
    }
    if media_type.ends_with("tar") {
        return Ok(Box::new(stream));
    }
    // Docker archives do not name the compression: look at the first bytes.
    let mut magic = [0u8; 2];
    let mut length = 0;
    while length < 2 {
        match stream.read(&mut magic[length..])? {
            0 => break,
            read => length += read,
        }
    }
    let whole = io::Cursor::new(magic[..length].to_vec()).chain(stream);
    Ok(if magic == [0x1f, 0x8b] { Box::new(flate2::read::MultiGzDecoder::new(whole)) } else { Box::new(whole) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar_of(path: &str, data: &[u8]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, data).unwrap();
        builder.into_inner().unwrap()
    }

    fn digest(bytes: &[u8]) -> String {
        let mut hash = Sha256::new();
        hash.update(bytes);
        hex_digest(hash)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut encoder, bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_right_layer_is_stored_under_its_content_digest() {
        let folder = tempfile::tempdir().unwrap();
        let tar = tar_of("hello", b"world");
        let packed = gzip(&tar);
        let digests = LayerDigests { digest: digest(&packed), diff_id: digest(&tar), media_type: "x.tar+gzip".into() };
        let path = store(folder.path(), "image", &digests, packed.as_slice(), false).unwrap();
        assert_eq!(fs::read_to_string(path.join("hello")).unwrap(), "world");
        assert_eq!(Some(path), layer_path(folder.path(), &digest(&tar)));
    }

    #[test]
    fn wrong_digests_and_corrupt_streams_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let tar = tar_of("hello", b"world");
        let packed = gzip(&tar);
        let right = LayerDigests { digest: digest(&packed), diff_id: digest(&tar), media_type: "x.tar+gzip".into() };
        let wrong_bytes = LayerDigests { digest: digest(b"other"), ..right.clone() };
        let wrong_content = LayerDigests { diff_id: digest(b"other"), ..right.clone() };
        for digests in [&wrong_bytes, &wrong_content] {
            let result = store(folder.path(), "image", digests, packed.as_slice(), false);
            assert!(matches!(result, Err(ImageError::DigestMismatch { .. })), "{result:?}");
        }
        let mut corrupt = packed.clone();
        let middle = corrupt.len() / 2;
        corrupt[middle] ^= 0xff;
        assert!(store(folder.path(), "image", &right, corrupt.as_slice(), false).is_err());
        let left: Vec<_> = fs::read_dir(folder.path().join("layers")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn digests_cannot_name_paths() {
        let folder = Path::new("/data");
        for bad in ["sha256:../../etc", "md5:00", "sha256:", &format!("sha256:{}/", "a".repeat(63))] {
            assert_eq!(layer_path(folder, bad), None, "{bad}");
        }
    }
}
