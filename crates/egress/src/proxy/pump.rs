//! Copies bytes between two connections, counts them, and ends when nothing has moved for a long time.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Time without a byte in either direction after which a connection is ended.
const IDLE: Duration = Duration::from_secs(3600);
const BUFFER: usize = 32 * 1024;

/// Bytes that a sandbox sent and received.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Traffic {
    pub(super) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }
}

/// Copies in both directions until both have ended, or one has failed.
pub(super) async fn pump<A, B>(sandbox: &mut A, outside: &mut B, traffic: &Traffic) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_sandbox, mut to_sandbox) = tokio::io::split(sandbox);
    let (mut from_outside, mut to_outside) = tokio::io::split(outside);
    tokio::try_join!(
        copy(&mut from_sandbox, &mut to_outside, traffic, Traffic::add_sent),
        copy(&mut from_outside, &mut to_sandbox, traffic, Traffic::add_received),
    )?;
    Ok(())
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    traffic: &Traffic,
    count: fn(&Traffic, usize),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let before = traffic.bytes();
        let length = match tokio::time::timeout(IDLE, from.read(&mut buffer)).await {
            Ok(read) => read?,
            Err(_) if traffic.bytes() != before => continue,
            Err(late) => return Err(late.into()),
        };
        if length == 0 {
            return to.shutdown().await;
        }
        tokio::time::timeout(IDLE, to.write_all(&buffer[..length])).await??;
        count(traffic, length);
    }
}
