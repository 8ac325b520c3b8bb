//! The access log: one JSON line per request, formatted on the worker and written by a separate thread.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use agent_sandbox_telemetry::{Hex, LineWriter};
use jiff::Timestamp;

use crate::observability::trace::TraceContext;

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

/// Takes the lines of all workers.
pub(crate) struct AccessLog(LineWriter);

impl AccessLog {
    /// Starts the writer thread.
    pub(crate) fn start(sink: Box<dyn Write + Send>) -> std::io::Result<Self> {
        LineWriter::start("access-log", sink).map(Self)
    }

    /// Queues a line. It is formatted before the queue is locked, so that only a copy happens under the lock.
    pub(crate) fn write(&self, line: &Line<'_>) {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.line.clear();
            scratch.format(line, Timestamp::now());
            self.0.write(&scratch.line);
        });
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
}
