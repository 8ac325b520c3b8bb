//! Moves bytes between a client and a process of the node until the process ends or the client leaves.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::remote::{Outcome, Output, OutputStream, Remote};
use crate::node::{BoxReader, BoxWriter, NodeError, ProcessSession, TerminalSize};

const CHUNK: usize = 32 * 1024;
/// A process may leave children behind that hold its output open; after it has ended, silence means that it is done.
const SILENCE_AFTER_EXIT: Duration = Duration::from_secs(2);

/// Starts a process for `remote`, runs it to its end and reports the outcome to the client.
pub async fn run(start: impl Future<Output = Result<ProcessSession, NodeError>>, remote: Remote) {
    let Remote { stdin, resize, output, gone } = remote;
    let work = async {
        match start.await {
            Ok(session) => converse(session, stdin, resize, output.as_ref()).await,
            Err(error) => Err(error),
        }
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        // Dropping the session tells the node that nobody listens any more.
        () = gone.cancelled() => return,
    };
    output.finish(&outcome).await;
}

async fn converse(
    session: ProcessSession,
    stdin: mpsc::Receiver<Bytes>,
    resize: mpsc::Receiver<TerminalSize>,
    output: &dyn Output,
) -> Outcome {
    let ProcessSession { stdin: process_stdin, stdout, stderr, resize: process_resize, exit } = session;
    let (heard, silence) = mpsc::channel(1);
    let outputs = async {
        tokio::join!(
            pump_output(stdout, OutputStream::Stdout, output, heard.clone()),
            pump_output(stderr, OutputStream::Stderr, output, heard.clone()),
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
                    drain(&mut outputs, silence).await;
                    outcome
                }
                () = &mut outputs => exit.await,
            }
        } => outcome,
        () = inputs => unreachable!("inputs never complete"),
    }
}

async fn drain(outputs: &mut (impl Future<Output = ()> + Unpin), mut silence: mpsc::Receiver<()>) {
    loop {
        tokio::select! {
            () = &mut *outputs => return,
            heard = timeout(SILENCE_AFTER_EXIT, silence.recv()) => {
                if heard.is_err() {
                    return;
                }
            }
        }
    }
}

async fn pump_output(source: Option<BoxReader>, stream: OutputStream, output: &dyn Output, heard: mpsc::Sender<()>) {
    let Some(mut source) = source else { return };
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(CHUNK);
        // A terminal whose last process has gone reads as an error, which is its end of file.
        let Ok(1..) = source.read_buf(&mut buffer).await else { return };
        // One waiting notice is as good as many.
        let _ = heard.try_send(());
        if output.write(stream, buffer.split().freeze()).await.is_err() {
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
    // Closing tells the process that its input has ended; it may have gone already.
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
