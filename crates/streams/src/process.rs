//! Copies bytes between a client and a process of the node until the process exits or the client disconnects.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::backend::{BoxReader, BoxWriter, NodeError, ProcessSession, TerminalSize};
use crate::remotecommand::{ClientStreams, Outcome, Output, OutputStream};

const CHUNK: usize = 32 * 1024;
/// Idle timeout for output after the process has exited. Its children may still hold the output open; the output counts
/// as complete once nothing has arrived for this long. What the process itself wrote is already in the pipe, so a short
/// time is enough. (Kubelets over containerd wait for such children without a limit; docker does not wait.)
const OUTPUT_IDLE_AFTER_EXIT: Duration = Duration::from_millis(100);

/// Starts a process for `client`, runs it until it exits and reports the outcome to the client.
pub async fn run(start: impl Future<Output = Result<ProcessSession, NodeError>>, client: ClientStreams) {
    let ClientStreams { stdin, resize, output, disconnected } = client;
    let process = async {
        match start.await {
            Ok(session) => copy_streams(session, stdin, resize, output.as_ref()).await,
            Err(error) => Err(error),
        }
    };
    let outcome = tokio::select! {
        outcome = process => outcome,
        // Dropping the session tells the node that the client has disconnected.
        () = disconnected.cancelled() => return,
    };
    output.finish(&outcome).await;
}

async fn copy_streams(
    session: ProcessSession,
    stdin: mpsc::Receiver<Bytes>,
    resize: mpsc::Receiver<TerminalSize>,
    output: &dyn Output,
) -> Outcome {
    let ProcessSession { stdin: process_stdin, stdout, stderr, resize: process_resize, exit } = session;
    let activity = Activity::default();
    let outputs = async {
        tokio::join!(
            pump_output(stdout, OutputStream::Stdout, output, &activity),
            pump_output(stderr, OutputStream::Stderr, output, &activity),
        );
    };
    let inputs = async {
        tokio::join!(pump_input(stdin, process_stdin), pump_sizes(resize, process_resize));
        std::future::pending::<()>().await;
    };
    tokio::pin!(outputs, exit);
    tokio::select! {
        outcome = async {
            tokio::select! {
                outcome = &mut exit => {
                    drain(&mut outputs, &activity).await;
                    outcome
                }
                () = &mut outputs => exit.await,
            }
        } => outcome,
        () = inputs => unreachable!("inputs never complete"),
    }
}

/// What the output pumps are doing.
#[derive(Default)]
struct Activity {
    /// Number of chunks read so far.
    chunks: AtomicUsize,
    /// Number of pumps that wait for the client to take a chunk.
    writing: AtomicUsize,
}

/// Waits for the rest of the output: until its end, or until it has been idle for [`OUTPUT_IDLE_AFTER_EXIT`]. While the
/// client does not take what was read, the output is not idle.
async fn drain(outputs: &mut (impl Future<Output = ()> + Unpin), activity: &Activity) {
    loop {
        let before = activity.chunks.load(Ordering::Relaxed);
        if timeout(OUTPUT_IDLE_AFTER_EXIT, &mut *outputs).await.is_ok() {
            return;
        }
        if activity.chunks.load(Ordering::Relaxed) == before && activity.writing.load(Ordering::Relaxed) == 0 {
            return;
        }
    }
}

async fn pump_output(source: Option<BoxReader>, stream: OutputStream, output: &dyn Output, activity: &Activity) {
    let Some(mut source) = source else { return };
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(CHUNK);
        // Reading a terminal after its last process has exited fails with an error; that is its end-of-file.
        let Ok(1..) = source.read_buf(&mut buffer).await else { return };
        activity.chunks.fetch_add(1, Ordering::Relaxed);
        activity.writing.fetch_add(1, Ordering::Relaxed);
        let written = output.write(stream, buffer.split().freeze()).await;
        activity.writing.fetch_sub(1, Ordering::Relaxed);
        if written.is_err() {
            return;
        }
    }
}

async fn pump_input(mut stdin: mpsc::Receiver<Bytes>, process: Option<BoxWriter>) {
    let Some(mut process) = process else { return };
    while let Some(bytes) = stdin.recv().await {
        if process.write_all(&bytes).await.is_err() || process.flush().await.is_err() {
            return;
        }
    }
    // Shutdown signals end-of-file to the process. It fails if the process has exited already.
    let _ = process.shutdown().await;
}

async fn pump_sizes(mut sizes: mpsc::Receiver<TerminalSize>, process: Option<mpsc::Sender<TerminalSize>>) {
    let Some(process) = process else { return };
    while let Some(size) = sizes.recv().await {
        if process.send(size).await.is_err() {
            return;
        }
    }
}
