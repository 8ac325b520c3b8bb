//! The access log: one JSON line per request, formatted on the worker and written by a separate thread.
//!
//! If the reader of the log is too slow, lines are dropped and counted; requests never wait for it.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_telemetry::Hex;
use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};

use crate::observability::trace::TraceContext;

/// Maximum number of bytes that wait for the writer.
const MAX_PENDING: usize = 4 * 1024 * 1024;
/// Time for which the writer collects lines, so that a busy router does not make a system call per line.
const BATCH_DELAY: Duration = Duration::from_millis(50);

/// The fields of one request.
pub(crate) struct Line<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    pub(crate) duration: Duration,
    pub(crate) client_ip: &'a str,
    pub(crate) sandbox_id: &'a str,
    pub(crate) sandbox_namespace: &'a str,
    pub(crate) bytes_out: u64,
    pub(crate) user_agent: &'a [u8],
    pub(crate) trace: &'a TraceContext,
}

#[derive(Default)]
struct Pending {
    text: String,
    dropped: u64,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    pending: Mutex<Pending>,
    ready: Condvar,
}

/// Takes the lines of all workers.
pub(crate) struct AccessLog {
    queue: Arc<Queue>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl AccessLog {
    /// Starts the writer thread.
    pub(crate) fn start(sink: Box<dyn Write + Send>) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let writer_queue = Arc::clone(&queue);
        let writer =
            std::thread::Builder::new().name("access-log".to_owned()).spawn(move || drain(&writer_queue, sink))?;
        Ok(Self { queue, writer: Some(writer) })
    }

    /// Queues a line. It is formatted before the lock is taken, so that only a copy happens under the lock.
    pub(crate) fn write(&self, line: &Line<'_>) {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.line.clear();
            scratch.format(line, Timestamp::now());
            let mut pending = self.queue.pending.lock();
            if pending.text.len() >= MAX_PENDING {
                pending.dropped += 1;
                return;
            }
            let was_empty = pending.text.is_empty();
            pending.text.push_str(&scratch.line);
            drop(pending);
            if was_empty {
                self.queue.ready.notify_one();
            }
        });
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.queue.pending.lock().closed = true;
        self.queue.ready.notify_one();
        if let Some(writer) = self.writer.take() {
            // The writer ends after its last write. A sink that blocks forever delays only the exit.
            let _ = writer.join();
        }
    }
}

fn drain(queue: &Queue, mut sink: Box<dyn Write + Send>) {
    let mut batch = String::new();
    loop {
        let (dropped, closed) = {
            let mut pending = queue.pending.lock();
            while pending.text.is_empty() && !pending.closed {
                queue.ready.wait(&mut pending);
            }
            if !pending.closed {
                drop(pending);
                std::thread::sleep(BATCH_DELAY);
                pending = queue.pending.lock();
            }
            std::mem::swap(&mut batch, &mut pending.text);
            (std::mem::take(&mut pending.dropped), pending.closed)
        };
        // A failing log cannot be reported anywhere.
        let _ = sink.write_all(batch.as_bytes());
        batch.clear();
        if dropped > 0 {
            tracing::warn!(dropped, "Access log reader is too slow; lines were lost");
        }
        let _ = sink.flush();
        if closed && queue.pending.lock().text.is_empty() {
            return;
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Formatting buffers of one thread.
#[derive(Default)]
struct Scratch {
    line: String,
    /// The second that `date_time` was formatted for: calendar arithmetic is expensive, and most lines share the
    /// second.
    second: i64,
    date_time: String,
}

impl Scratch {
    fn format(&mut self, line: &Line<'_>, now: Timestamp) {
        if self.second != now.as_second() || self.date_time.is_empty() {
            self.second = now.as_second();
            self.date_time.clear();
            let whole = Timestamp::from_second(self.second).unwrap_or_default();
            // Writing to a string cannot fail, so results are ignored here and below.
            let _ = write!(self.date_time, "{whole:.0}");
            self.date_time.truncate(self.date_time.trim_end_matches('Z').len());
        }
        let out = &mut self.line;
        out.push_str(r#"{"time":""#);
        out.push_str(&self.date_time);
        let _ = write!(out, ".{:03}Z", now.subsec_millisecond().max(0));
        format(out, line);
    }
}

fn format(out: &mut String, line: &Line<'_>) {
    out.push_str(r#"","level":"INFO","msg":"request","method":""#);
    escape(out, line.method.as_bytes());
    out.push_str(r#"","path":""#);
    escape(out, line.path.as_bytes());
    let micros = line.duration.as_micros();
    let _ =
        write!(out, r#"","status":{},"duration_ms":{}.{:03},"client_ip":""#, line.status, micros / 1000, micros % 1000);
    out.push_str(line.client_ip);
    out.push_str(r#"","sandbox_id":""#);
    out.push_str(line.sandbox_id);
    out.push_str(r#"","sandbox_namespace":""#);
    out.push_str(line.sandbox_namespace);
    let _ = write!(out, r#"","bytes_out":{},"user_agent":""#, line.bytes_out);
    escape(out, line.user_agent);
    out.push('"');
    if let Some(trace_id) = &line.trace.trace_id {
        let _ = write!(out, r#","trace_id":"{}""#, Hex(trace_id));
    }
    if let Some(span) = line.trace.span.as_ref().or(line.trace.parent.as_ref()) {
        let _ = write!(out, r#","span_id":"{}""#, Hex(span));
    }
    out.push_str("}\n");
}

/// JSON string escaping; bytes that are not UTF-8 become replacement characters.
fn escape(out: &mut String, bytes: &[u8]) {
    if bytes.iter().all(|b| (0x20..0x7f).contains(b) && *b != b'"' && *b != b'\\') {
        out.push_str(std::str::from_utf8(bytes).expect("printable ASCII is UTF-8"));
        return;
    }
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_json_whatever_clients_send() {
        let trace = TraceContext { trace_id: Some([0xab; 16]), span: Some([1; 8]), ..TraceContext::default() };
        let line = Line {
            method: "GET",
            path: "/a\"b\\c",
            status: 200,
            duration: Duration::from_micros(1500),
            client_ip: "10.0.0.1",
            sandbox_id: "box",
            sandbox_namespace: "default",
            bytes_out: 12,
            user_agent: b"curl\n\xff\"}",
            trace: &trace,
        };
        let mut scratch = Scratch::default();
        scratch.format(&line, Timestamp::new(1_800_000_000, 45_000_000).unwrap());
        let text = scratch.line;
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["time"], &value["msg"]), (&"2027-01-15T08:00:00.045Z".into(), &"request".into()));
        assert_eq!(value["path"], "/a\"b\\c");
        assert_eq!(value["user_agent"], "curl\n\u{fffd}\"}");
        assert_eq!(value["duration_ms"], 1.5);
        assert_eq!(value["trace_id"], "ab".repeat(16));
        assert_eq!(value["span_id"], "0101010101010101");
        assert!(text.ends_with("}\n") && text.lines().count() == 1);
    }

    #[test]
    fn lines_written_before_the_end_are_not_lost() {
        let (reader, writer) = std::io::pipe().unwrap();
        let log = AccessLog::start(Box::new(writer)).unwrap();
        let trace = TraceContext::default();
        for status in 0..100 {
            log.write(&Line {
                method: "GET",
                path: "/",
                status,
                duration: Duration::ZERO,
                client_ip: "",
                sandbox_id: "",
                sandbox_namespace: "",
                bytes_out: 0,
                user_agent: b"",
                trace: &trace,
            });
        }
        drop(log);
        assert_eq!(std::io::read_to_string(reader).unwrap().lines().count(), 100);
    }
}
