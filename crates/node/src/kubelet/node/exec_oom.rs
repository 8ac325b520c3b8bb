//! Commands that are killed for lack of memory: their output ends with a message that names the limit, because an exit
//! code of 137 alone says nothing.

use bytes::Bytes;
use futures::stream;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::oneshot;
use tokio_util::io::StreamReader;
use tokio_util::task::AbortOnDropHandle;

use crate::kubelet::resources::quantity::binary;
use crate::runtime::{ExecSession, RuntimeError};

/// Why something was killed.
pub(crate) fn reason(limit: Option<u64>) -> String {
    match limit {
        Some(bytes) => format!("out of memory: the limit is {}", binary(bytes)),
        None => "out of memory".to_owned(),
    }
}

/// Appends the message to the command's standard error (or to its terminal) when it was killed for lack of memory, and
/// calls `report`.
pub(super) fn explain(
    session: ExecSession,
    limit: Option<u64>,
    report: impl FnOnce(&str) + Send + 'static,
) -> ExecSession {
    let ExecSession { stdin, stdout, stderr, resize, exit } = session;
    let line_end = if resize.is_some() { "\r\n" } else { "\n" };
    let (say, said) = oneshot::channel();
    // A task of its own, so that the message does not depend on when the caller asks for the exit.
    let exit = AbortOnDropHandle::new(tokio::spawn(async move {
        let exit = exit.await;
        if exit.as_ref().is_ok_and(|exit| exit.oom_killed) {
            let reason = reason(limit);
            report(&reason);
            // Fails when the client no longer reads the output.
            let _ = say.send(format!("the command was killed: {reason}{line_end}"));
        }
        exit
    }));
    let (stdout, stderr) = match (stdout, stderr) {
        (stdout, Some(stderr)) => (stdout, Some(ending_with(stderr, said))),
        (stdout, None) => (stdout.map(|stdout| ending_with(stdout, said)), None),
    };
    let exit = async move { exit.await.unwrap_or(Err(RuntimeError::Timeout("a command"))) };
    ExecSession { stdin, stdout, stderr, resize, exit: Box::pin(exit) }
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// A stream, followed by the message if there is one.
fn ending_with(stream: Reader, said: oneshot::Receiver<String>) -> Reader {
    let message = async { Ok::<_, std::io::Error>(Bytes::from(said.await.unwrap_or_default())) };
    Box::new(stream.chain(StreamReader::new(Box::pin(stream::once(message)))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Exit;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    async fn output(oom_killed: bool, stderr: bool) -> (String, bool) {
        let exit = Exit { code: 137, signal: Some(9), oom_killed, finished_at: jiff::Timestamp::UNIX_EPOCH };
        let reader = |text: &'static str| Box::new(text.as_bytes()) as Reader;
        let session = ExecSession {
            stdin: None,
            stdout: Some(reader("out\n")),
            stderr: stderr.then(|| reader("err\n")),
            resize: None,
            exit: Box::pin(std::future::ready(Ok(exit))),
        };
        let reported = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&reported);
        let session = explain(session, Some(64 << 20), move |_| seen.store(true, Ordering::Relaxed));
        let mut text = String::new();
        session.stdout.unwrap().read_to_string(&mut text).await.unwrap();
        if let Some(mut stderr) = session.stderr {
            stderr.read_to_string(&mut text).await.unwrap();
        }
        assert_eq!(session.exit.await.unwrap(), exit);
        (text, reported.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn only_a_command_that_ran_out_of_memory_says_so() {
        let message = "the command was killed: out of memory: the limit is 64Mi\n";
        assert_eq!(output(true, true).await, (format!("out\nerr\n{message}"), true));
        assert_eq!(output(true, false).await, (format!("out\n{message}"), true));
        assert_eq!(output(false, true).await, ("out\nerr\n".to_owned(), false));
    }
}
