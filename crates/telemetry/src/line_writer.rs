//! Writes lines on a thread of its own, so that the caller never waits for a disk or a pipe.
//!
//! If the sink is too slow, lines are dropped and counted.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Maximum number of bytes that wait for the writer.
const MAX_PENDING: usize = 4 * 1024 * 1024;
/// Time for which the writer collects lines, so that a busy process does not make a system call per line.
const BATCH_DELAY: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Pending {
    text: String,
    dropped: u64,
    /// Whether the sink is being given lines that are no longer in `text`.
    writing: bool,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    pending: Mutex<Pending>,
    ready: Condvar,
    /// Everything that was queued is written.
    idle: Condvar,
}

/// Takes lines from any thread. Dropping it writes what is queued.
pub struct LineWriter {
    queue: Arc<Queue>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl LineWriter {
    /// Starts the writer thread. `name` is the thread's name and appears in warnings about lost lines. The sink gets
    /// whole lines.
    pub fn start(name: &'static str, sink: Box<dyn Write + Send>) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let writer_queue = Arc::clone(&queue);
        let writer =
            std::thread::Builder::new().name(name.to_owned()).spawn(move || drain(name, &writer_queue, sink))?;
        Ok(Self { queue, writer: Some(writer) })
    }

    /// Queues a line, which includes its newline.
    pub fn write(&self, line: &str) {
        let mut pending = self.queue.pending.lock();
        if pending.text.len() >= MAX_PENDING {
            pending.dropped += 1;
            return;
        }
        let was_empty = pending.text.is_empty();
        pending.text.push_str(line);
        drop(pending);
        if was_empty {
            self.queue.ready.notify_one();
        }
    }

    /// Waits until the sink has everything that was queued; false if it does not within `limit`.
    pub fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut pending = self.queue.pending.lock();
        while pending.writing || !pending.text.is_empty() {
            if self.queue.idle.wait_until(&mut pending, deadline).timed_out() {
                return false;
            }
        }
        true
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.queue.pending.lock().closed = true;
        self.queue.ready.notify_one();
        if let Some(writer) = self.writer.take() {
            // The writer ends after its last write. A sink that blocks forever delays only the exit.
            let _ = writer.join();
        }
    }
}

fn drain(name: &'static str, queue: &Queue, mut sink: Box<dyn Write + Send>) {
    let mut batch = String::new();
    let mut failing = false;
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
            pending.writing = true;
            (std::mem::take(&mut pending.dropped), pending.closed)
        };
        let written = sink.write_all(batch.as_bytes()).and_then(|()| sink.flush());
        match &written {
            Err(error) if !failing => tracing::warn!(log = name, %error, "Cannot write the log; lines are lost"),
            _ => {}
        }
        failing = written.is_err();
        batch.clear();
        if dropped > 0 {
            tracing::warn!(log = name, dropped, "The log's reader is too slow; lines were lost");
        }
        let mut pending = queue.pending.lock();
        pending.writing = false;
        if pending.text.is_empty() {
            queue.idle.notify_all();
            if closed {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn lines_written_before_the_end_are_not_lost() {
        let (reader, writer) = std::io::pipe().unwrap();
        let lines = LineWriter::start("test", Box::new(writer)).unwrap();
        for number in 0..100 {
            lines.write(&format!("{number}\n"));
        }
        drop(lines);
        assert_eq!(std::io::read_to_string(reader).unwrap().lines().count(), 100);
    }

    /// A disk that no longer answers: says that a write has begun, and ends it when the sender is dropped.
    struct StuckSink {
        began: mpsc::Sender<()>,
        released: mpsc::Receiver<()>,
    }

    impl Write for StuckSink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.began.send(());
            let _ = self.released.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_sink_blocks_no_caller_and_lines_beyond_the_limit_are_counted() {
        let (began, beginning) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let lines = LineWriter::start("test", Box::new(StuckSink { began, released })).unwrap();
        lines.write("first\n");
        beginning.recv().unwrap();
        // The writer is now in the sink. A `write` that waited for it would never return.
        let line = format!("{}\n", "x".repeat(1023));
        let fitting = MAX_PENDING / line.len();
        for _ in 0..fitting + 7 {
            lines.write(&line);
        }
        {
            let pending = lines.queue.pending.lock();
            assert_eq!((pending.text.len(), pending.dropped), (MAX_PENDING, 7));
        }
        assert!(!lines.flush(Duration::from_millis(10)), "the sink has not taken them");
        drop(release);
        assert!(lines.flush(Duration::from_secs(60)));
    }

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_flushed_is_in_the_sink() {
        let sink = Memory::default();
        let lines = LineWriter::start("test", Box::new(sink.clone())).unwrap();
        assert!(lines.flush(Duration::from_secs(60)), "there is nothing to wait for");
        for expected in ["one\n", "one\none\n"] {
            lines.write("one\n");
            assert!(lines.flush(Duration::from_secs(60)));
            assert_eq!(*sink.0.lock(), expected.as_bytes());
        }
    }
}
