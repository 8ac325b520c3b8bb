//! Fuzz targets: calls of clients with their filters, metadata and network settings, and stored keys.

#[cfg(test)]
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/request.rs"]
mod input;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::keys;
use crate::metadata::{self, Metadata};
use crate::network;
use crate::routes::Route;

/// A function that gets any bytes and panics if they are handled wrongly.
pub type Target = fn(&[u8]);

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] = &[("e2b-call", call), ("e2b-key", keys::fuzz)];

/// The bytes are a request. Metadata are read as they were stored, whatever they hold. A body may be network settings.
fn call(data: &[u8]) {
    let Some(request) = input::request(data) else { return };
    let path = request.uri().path();
    let route = Route::of(request.method(), path);
    assert_eq!(route, Route::of(request.method(), &format!("/{path}/")), "slashes around a path do not matter");
    let filtered = metadata::filter(request.uri().query().unwrap_or_default());
    for given in [Some(filtered), serde_json::from_slice::<Metadata>(request.body()).ok()].into_iter().flatten() {
        let mut meta = ObjectMeta::default();
        if metadata::store(&given, &mut meta).is_ok() {
            assert_eq!(metadata::load(&meta), given);
        }
    }
    network::fuzz(request.body());
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_pass() {
        super::corpus::replay(super::TARGETS);
    }
}
