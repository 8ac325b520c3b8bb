//! Fuzz target: lines of JSON that a sandbox sends.

#[cfg(test)]
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;

use std::convert::Infallible;

use agent_sandbox_protocol::native::Event;
use bytes::Bytes;
use futures::executor::block_on;
use http::Response;
use http_body_util::StreamBody;
use hyper::body::Frame;

use crate::events::{JsonLines, command_event};

/// A function that gets any bytes and panics if they are handled wrongly.
pub type Target = fn(&[u8]);

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] = &[("json-lines", json_lines)];

/// The first byte is the size of the packets, the rest the lines.
fn json_lines(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else { return };
    let packets: Vec<Result<Frame<Bytes>, Infallible>> =
        bytes.chunks(usize::from(*step).max(1)).map(|packet| Ok(Frame::data(Bytes::copy_from_slice(packet)))).collect();
    let mut lines = JsonLines::new(Response::new(StreamBody::new(futures::stream::iter(packets))));
    block_on(async {
        while let Ok(Some(event)) = lines.next::<Event>().await {
            let _ = command_event(event, "box", "run");
        }
    });
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_pass() {
        super::corpus::replay(super::TARGETS);
    }
}
