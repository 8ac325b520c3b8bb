//! Fuzz targets: DNS queries of Pods, layers and documents of images, files of containers.

#[cfg(test)]
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/tar_checksums.rs"]
pub(crate) mod tar_checksums;

use crate::kernel::{fuzz_image_documents, fuzz_import, fuzz_layer, fuzz_user};
use crate::kubelet::dns;
use crate::kubelet::logs;
use crate::kubelet::server::fuzz_certificate;

/// A function that gets any bytes and panics if they are handled wrongly.
pub type Target = fn(&[u8]);

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] = &[
    ("dns-query", dns::fuzz),
    ("client-certificate", fuzz_certificate),
    ("image-layer", fuzz_layer),
    ("image-import", fuzz_import),
    ("image-documents", fuzz_image_documents),
    ("image-users", fuzz_user),
    ("log-lines", log_lines),
];

/// The bytes are a file with lines of a container's log.
fn log_lines(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        let _ = logs::parse(line);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_pass() {
        super::corpus::replay(super::TARGETS);
    }
}
