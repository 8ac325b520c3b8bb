//! Writes lines on a thread of its own, so that the caller never waits for a disk or a pipe.
//!
//! If the sink is too slow, lines are dropped and counted.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Maximum number of bytes that wait for the writer.
const MAX_PENDING: usize = 4 * 1024 * 1024;
/// Time for which the writer collects lines, so that a busy process does not make a system call per line.
const BATCH_DELAY: Duration = Duration::from_millis(50);

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
        if closed && queue.pending.lock().text.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
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
}
