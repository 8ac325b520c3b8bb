//! One run of code: its events go to the client as they come, and a client that leaves interrupts it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::contexts::Context;
use super::kernel::{Kernel, Line, Plan};
use crate::http_io::body::{self, Body};

/// Time without events after which a sign of life is sent.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// How often code that a client has left is interrupted, and how many times before its process is ended.
const INTERRUPT_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERRUPTS: usize = 10;

/// Events that wait for a slow client.
const QUEUE: usize = 16;

/// Runs the code in a task of its own and streams its events, one JSON object per line.
pub(super) fn respond(
    context: Arc<Context>,
    plan: Plan,
    code: String,
    variables: BTreeMap<String, String>,
) -> Response<Body> {
    let (events, queue) = mpsc::channel(QUEUE);
    let request = json!({ "code": code, "env": variables });
    let run = Run { stopping: context.stopping(), context, plan, events };
    tokio::spawn(run.perform(request.to_string()));
    let lines = futures::stream::unfold(queue, |mut queue| async move {
        let line: Bytes = queue.recv().await?;
        Some((Ok::<_, Infallible>(line), queue))
    });
    body::with_type(StatusCode::OK, "application/x-ndjson", Body::from_stream(lines))
}

struct Run {
    context: Arc<Context>,
    plan: Plan,
    events: mpsc::Sender<Bytes>,
    stopping: CancellationToken,
}

/// Why a run went no further.
enum Interrupted {
    /// The context is restarted or removed.
    Stopped,
    /// The client has left.
    Abandoned,
}

/// How a run ended for the kernel.
enum Ending {
    Done,
    Stopped,
    Dead,
}

impl Run {
    async fn perform(self, request: String) {
        let waiting = Arc::clone(&self.context.kernel).lock_owned();
        let mut slot = tokio::select! {
            slot = waiting => slot,
            () = self.events.closed() => return,
        };
        slot.take_if(|kernel| kernel.has_ended());
        if slot.is_none() {
            match Kernel::start(&self.plan).await {
                Ok(kernel) => *slot = Some(kernel),
                Err(message) => return self.finish_with("KernelError", &message).await,
            }
        }
        let Some(kernel) = slot.as_mut() else { return };
        match self.drive(kernel, &request).await {
            Ending::Done => {}
            Ending::Stopped => {
                *slot = None;
                let message = "the context was restarted or removed during the run";
                return self.finish_with("ContextRestarting", message).await;
            }
            Ending::Dead => {
                let message = kernel.death().await;
                *slot = None;
                return self.finish_with("KernelDied", &message).await;
            }
        }
        drop(slot);
        let _ = self.send(event(&json!({ "type": "end_of_execution" }))).await;
    }

    /// Passes events on until the run is done.
    async fn drive(&self, kernel: &mut Kernel, request: &str) -> Ending {
        let sent = tokio::select! {
            sent = kernel.send(request.as_bytes()) => sent,
            () = self.stopping.cancelled() => return Ending::Stopped,
        };
        if sent.is_err() {
            return Ending::Dead;
        }
        loop {
            let line = tokio::select! {
                line = kernel.next() => line,
                () = self.stopping.cancelled() => return Ending::Stopped,
                () = self.events.closed() => return self.abandon(kernel).await,
                () = tokio::time::sleep(KEEPALIVE) => Some(Line::Event(event(&json!({ "type": "keepalive" })))),
            };
            match line {
                Some(Line::Event(event)) => match self.send(event).await {
                    Ok(()) => {}
                    Err(Interrupted::Stopped) => return Ending::Stopped,
                    Err(Interrupted::Abandoned) => return self.abandon(kernel).await,
                },
                Some(Line::Done) => return Ending::Done,
                None => return Ending::Dead,
            }
        }
    }

    /// Interrupts the code until it gives up, so that the context can be used again.
    async fn abandon(&self, kernel: &mut Kernel) -> Ending {
        for _ in 0..MAX_INTERRUPTS {
            kernel.interrupt();
            let ended = async {
                loop {
                    match kernel.next().await {
                        Some(Line::Event(_)) => {}
                        Some(Line::Done) => return Ending::Done,
                        None => return Ending::Dead,
                    }
                }
            };
            tokio::select! {
                ending = ended => return ending,
                () = self.stopping.cancelled() => return Ending::Stopped,
                () = tokio::time::sleep(INTERRUPT_INTERVAL) => {}
            }
        }
        Ending::Dead
    }

    async fn send(&self, line: Bytes) -> Result<(), Interrupted> {
        tokio::select! {
            sent = self.events.send(line) => sent.map_err(|_| Interrupted::Abandoned),
            () = self.stopping.cancelled() => Err(Interrupted::Stopped),
        }
    }

    /// Reports an error of the kernel itself. The queue may be full: the client then sees only the end.
    async fn finish_with(&self, name: &str, message: &str) {
        let error =
            json!({ "type": "error", "name": name, "value": message, "traceback": format!("{name}: {message}") });
        for line in [event(&error), event(&json!({ "type": "end_of_execution" }))] {
            let _ = tokio::time::timeout(KEEPALIVE, self.events.send(line)).await;
        }
    }
}

/// A line with an event. Clients decode each chunk of the network alone: everything but ASCII is escaped.
fn event(value: &Value) -> Bytes {
    let mut line = String::new();
    for character in value.to_string().chars() {
        if character.is_ascii() {
            line.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                line.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    line.push('\n');
    line.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E-111
    #[test]
    fn lines_are_ascii() {
        let line = event(&json!({ "value": "ä 🐍" }));
        assert_eq!(line, "{\"value\":\"\\u00e4 \\ud83d\\udc0d\"}\n");
        assert_eq!(serde_json::from_slice::<Value>(&line).expect("JSON")["value"], "ä 🐍");
    }
}
