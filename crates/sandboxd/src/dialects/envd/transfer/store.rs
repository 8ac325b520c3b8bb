//! Writes one uploaded file: its bytes, decompressed if they are compressed, its owner and its metadata.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use rustix::io::Errno;

use super::{TransferError, metadata, written};
use crate::core::Sandbox;
use crate::core::files::blocking;
use crate::core::files::owned::open_for_writing;
use crate::core::files::write::BatchWriter;
use crate::dialects::envd::User;
use crate::http_io::body::Body;
use crate::http_io::form::Form;

/// Compressed bytes that are decompressed at once: at most a thousand times as many come out.
const COMPRESSED_STEP: usize = 4096;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
}

impl Encoding {
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, TransferError> {
        match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes().to_ascii_lowercase()).as_deref() {
            None | Some(b"" | b"identity") => Ok(Self::Identity),
            Some(b"gzip" | b"x-gzip") => Ok(Self::Gzip),
            Some(other) => {
                let name = String::from_utf8_lossy(other);
                Err(TransferError::invalid(format!("content encoding {name:?} is neither identity nor gzip")))
            }
        }
    }
}

/// For whom, and with what metadata, files are stored.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub(super) sandbox: &'a Arc<Sandbox>,
    pub(super) user: &'a User,
    pub(super) metadata: &'a BTreeMap<String, String>,
}

/// A file being written.
struct Open {
    writer: BatchWriter,
    total: u64,
    limit: u64,
    given: String,
    name: String,
    path: String,
}

impl Open {
    async fn push(&mut self, bytes: Bytes) -> Result<(), TransferError> {
        self.total += bytes.len() as u64;
        if self.total > self.limit {
            let message = format!("{:?}: larger than {} bytes", self.given, self.limit);
            return Err(TransferError::new(http::StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        self.writer.push(bytes).await.map_err(|error| TransferError::of_file(&self.given, &error))
    }
}

impl Target<'_> {
    pub(super) async fn store_body(
        &self,
        given: &str,
        mut incoming: Body,
        encoding: Encoding,
    ) -> Result<serde_json::Value, TransferError> {
        let mut open = self.open(given).await?;
        let mut decoder = (encoding == Encoding::Gzip).then(|| MultiGzDecoder::new(Vec::new()));
        while let Some(frame) = incoming.frame().await {
            let frame = frame.map_err(|_| TransferError::invalid(format!("{given:?}: the body broke off")))?;
            let Ok(bytes) = frame.into_data() else { continue };
            match &mut decoder {
                None => open.push(bytes).await?,
                Some(decoder) => {
                    for step in bytes.chunks(COMPRESSED_STEP) {
                        decoder.write_all(step).map_err(|error| not_gzip(given, &error))?;
                        open.push(std::mem::take(decoder.get_mut()).into()).await?;
                    }
                }
            }
        }
        if let Some(decoder) = decoder {
            let rest = decoder.finish().map_err(|error| not_gzip(given, &error))?;
            open.push(rest.into()).await?;
        }
        self.finish(open).await
    }

    pub(super) async fn store_part(&self, given: &str, form: &mut Form) -> Result<serde_json::Value, TransferError> {
        let mut open = self.open(given).await?;
        while let Some(bytes) =
            form.chunk().await.map_err(|error| TransferError::invalid(format!("malformed form: {error}")))?
        {
            open.push(bytes).await?;
        }
        self.finish(open).await
    }

    async fn open(&self, given: &str) -> Result<Open, TransferError> {
        let path = self.user.resolve(self.sandbox, given)?;
        let absolute = self.sandbox.paths.absolute(&path);
        let (root, owner) = (Arc::clone(self.sandbox.paths.root()), self.user.owner());
        let attributes = self.metadata.clone();
        let opened = blocking(move || {
            let file = open_for_writing(&root, &path, owner)?;
            metadata::replace(&file, &attributes)?;
            Ok(file)
        })
        .await;
        let file = opened.map_err(|error| match error.errno() {
            Some(Errno::NOTDIR) => TransferError::invalid(format!("{given:?}: a part of the path is a file")),
            Some(Errno::OPNOTSUPP) => TransferError::invalid(format!("{given:?}: the file system keeps no metadata")),
            _ => TransferError::of_file(given, &error),
        })?;
        Ok(Open {
            writer: BatchWriter::new(Arc::new(file)),
            total: 0,
            limit: self.sandbox.limits.upload_bytes,
            given: given.to_owned(),
            name: absolute.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            path: absolute.display().to_string(),
        })
    }

    async fn finish(&self, open: Open) -> Result<serde_json::Value, TransferError> {
        open.writer.finish().await.map_err(|error| TransferError::of_file(&open.given, &error))?;
        Ok(written(&open.name, &open.path, self.metadata))
    }
}

fn not_gzip(given: &str, error: &std::io::Error) -> TransferError {
    TransferError::invalid(format!("{given:?}: the body is not gzip: {error}"))
}
