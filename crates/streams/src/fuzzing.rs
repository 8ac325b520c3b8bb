//! Fuzz targets: SPDY frames and header blocks, WebSocket channels, the heads of streaming requests.

#[cfg(test)]
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/request.rs"]
mod input;

use std::sync::LazyLock;

use futures::StreamExt;
use jiff::Timestamp;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Runtime;

use crate::remotecommand::SizeReader;
use crate::request::{self, Query};
use crate::spdy::frame::{Frame, FrameReader, FrameWriter};
use crate::spdy::headers;
use crate::upgrade::Offer;
use crate::websocket;
use crate::websocket::channels::Encoding;

/// A function that gets any bytes and panics if they are handled wrongly.
pub type Target = fn(&[u8]);

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] = &[
    ("spdy-frames", spdy_frames),
    ("spdy-headers", headers::fuzz),
    ("websocket-channels", websocket_channels),
    ("stream-request", stream_request),
];

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().build().expect("a runtime without a driver"));

/// The first byte is the size of the packets in which the rest arrives. What was read must survive being written.
fn spdy_frames(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else { return };
    let (mut reader, mut writer, mut second) = (FrameReader::default(), FrameWriter::default(), FrameReader::default());
    for packet in bytes.chunks(usize::from(*step).max(1)) {
        reader.push(packet);
        loop {
            let frame = match reader.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_) => return,
            };
            second.push(&writer.encode(&frame).expect("a frame that was read can be written"));
            let again = second.next().expect("a written frame is valid");
            assert_eq!(again.as_ref(), Some(&frame));
            if let Frame::Data { payload, .. } = frame {
                assert!(payload.len() <= bytes.len());
            }
        }
    }
}

/// The bytes are what a WebSocket client sends.
fn websocket_channels(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else { return };
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    RUNTIME.block_on(async {
        let sending = async {
            for packet in bytes.chunks(usize::from(*step).max(1)) {
                if client.write_all(packet).await.is_err() {
                    break;
                }
            }
            let _ = client.shutdown().await;
            // Answers to pings must not fill the pipe.
            let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
        };
        let receiving = async {
            let mut socket = websocket::accept(server).await;
            let mut sizes = SizeReader::default();
            while let Some(Ok(message)) = socket.next().await {
                let _ = Encoding::Base64.decode(message.clone());
                if let Some((_, payload)) = Encoding::Binary.decode(message) {
                    let _ = sizes.push(&payload);
                }
            }
        };
        tokio::join!(sending, receiving);
    });
}

/// The bytes are a request for a stream of a Pod.
fn stream_request(data: &[u8]) {
    let Some(request) = input::request(data) else { return };
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "b"}]}});
    let query = Query::parse(request.uri().query());
    let _ = request::log_options(&query, &pod, Timestamp::UNIX_EPOCH);
    let _ = request::exec_request(&query, &pod);
    let _ = request::attach_request(&query, &pod);
    let _ = request::forwarded_ports(&query);
    if let Ok(offer) = Offer::read(request.method(), request.headers()) {
        let supported = ["v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io"];
        let _ = offer.choose(&supported).map(|protocol| offer.accept(protocol));
        let _ = offer.unsupported(&supported);
        let _ = offer.accept("");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_pass() {
        super::corpus::replay(super::TARGETS);
    }
}
