//! Reads container logs: CRI log lines from disk in, the container's output out, with tailing and following.
//!
//! A log line is `<RFC 3339 time> stdout|stderr P|F <text>`; `P` marks a part of a longer line. Rotated files are
//! `path.1` (newest), `path.2` and so on.

use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, AsyncSeekExt, BufReader};
use tokio::sync::mpsc;

/// Which lines are read, and how they are shown.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LogOptions {
    pub follow: bool,
    pub timestamps: bool,
    /// `None` means all, `Some(0)` none of the existing ones.
    pub tail_lines: Option<u64>,
    pub since: Option<Timestamp>,
    pub limit_bytes: Option<u64>,
    pub stream: LogStream,
}

/// Which output streams are read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LogStream {
    #[default]
    All,
    Stdout,
    Stderr,
}

/// A line of a log file.
#[derive(Debug, Eq, PartialEq)]
pub struct Line<'a> {
    pub time: &'a str,
    pub stdout: bool,
    /// The line continues in the next one.
    pub partial: bool,
    pub text: &'a [u8],
}

/// Parses one stored line, given without its newline.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stdout = match parts.next()? {
        b"stdout" => true,
        b"stderr" => false,
        _ => return None,
    };
    let partial = parts.next()?.starts_with(b"P");
    Some(Line { time, stdout, partial, text: parts.next().unwrap_or_default() })
}

/// Selects and formats lines by the options; keeps state across partial lines.
#[derive(Debug)]
struct Filter {
    options: LogOptions,
    /// Bytes left of `limit_bytes`.
    left: Option<u64>,
    middle_of_line: bool,
}

impl Filter {
    fn new(options: LogOptions) -> Self {
        Self { left: options.limit_bytes, options, middle_of_line: false }
    }

    fn is_exhausted(&self) -> bool {
        self.left == Some(0)
    }

    fn wants(&self, line: &Line<'_>) -> bool {
        let stream = match self.options.stream {
            LogStream::All => true,
            LogStream::Stdout => line.stdout,
            LogStream::Stderr => !line.stdout,
        };
        let recent = self.options.since.is_none_or(|since| line.time.parse::<Timestamp>().is_ok_and(|t| t >= since));
        stream && recent
    }

    fn render(&mut self, raw: &[u8], out: &mut BytesMut) {
        let Some(line) = parse(raw) else { return };
        if !self.wants(&line) || self.is_exhausted() {
            return;
        }
        let start = out.len();
        if self.options.timestamps && !self.middle_of_line {
            out.extend_from_slice(line.time.as_bytes());
            out.extend_from_slice(b" ");
        }
        out.extend_from_slice(line.text);
        if !line.partial {
            out.extend_from_slice(b"\n");
        }
        self.middle_of_line = line.partial;
        if let Some(left) = &mut self.left {
            let added = (out.len() - start) as u64;
            if added > *left {
                out.truncate(start + usize::try_from(*left).unwrap_or(usize::MAX));
            }
            *left = left.saturating_sub(added);
        }
    }
}

/// The files of a log, oldest first.
async fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for number in 1.. {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        let rotated = PathBuf::from(name);
        if tokio::fs::metadata(&rotated).await.is_err() {
            break;
        }
        found.push(rotated);
    }
    found.reverse();
    found.push(path.to_owned());
    found
}

/// The text of the last lines, at most its last `max_bytes`, used for termination messages. A line may be as long as the
/// whole log, so only the end is held in memory.
pub async fn tail(path: &Path, lines: usize, max_bytes: usize) -> io::Result<Vec<u8>> {
    let options = LogOptions { tail_lines: Some(lines as u64), ..LogOptions::default() };
    let (sender, mut chunks) = mpsc::channel::<io::Result<Bytes>>(64);
    let collect = async move {
        let mut text = Vec::new();
        while let Some(Ok(chunk)) = chunks.recv().await {
            text.extend_from_slice(&chunk);
            text.drain(..text.len().saturating_sub(max_bytes));
        }
        text
    };
    let never_ends = std::future::pending::<()>();
    let (read, text) = tokio::join!(read(path.to_owned(), options, never_ends, sender), collect);
    read.map(|()| text)
}

/// Polling interval of a followed file: the supervisor, another process, writes it and sends no event.
const FOLLOW_PAUSE: Duration = Duration::from_millis(50);

/// Sends the selected bytes of a log. With `follow`, continues until `ended` resolves (and then reads once more to the
/// end) or the receiver is dropped.
pub async fn read(
    path: PathBuf,
    options: LogOptions,
    ended: impl Future<Output = ()>,
    out: mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let follow = options.follow;
    let skip = match options.tail_lines {
        Some(wanted) => count_lines(&path).await?.saturating_sub(wanted),
        None => 0,
    };
    let mut filter = Filter::new(options);
    let mut reader = Reader { skip, pending: Vec::new() };
    let mut current: Option<(PathBuf, u64, u64)> = None;
    for file in files(&path).await {
        let position = reader.drain(&file, 0, &mut filter, &out).await?;
        current = position.map(|(inode, offset)| (file, inode, offset));
    }
    if !follow {
        return reader.flush(&mut filter, &out).await;
    }
    tokio::pin!(ended);
    let mut last_round = false;
    loop {
        if out.is_closed() || filter.is_exhausted() {
            return Ok(());
        }
        current = reader.advance(&path, current, &mut filter, &out).await?;
        if last_round {
            return reader.flush(&mut filter, &out).await;
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_PAUSE) => {}
            () = out.closed() => return Ok(()),
            () = &mut ended => last_round = true,
        }
    }
}

/// Number of lines in all files; the parts of one line count as one.
async fn count_lines(path: &Path) -> io::Result<u64> {
    let mut count = 0;
    for file in files(path).await {
        let mut reader = match File::open(&file).await {
            Ok(file) => BufReader::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).await? > 0 {
            count += u64::from(parse(line.trim_ascii_end()).is_some_and(|l| !l.partial));
            line.clear();
        }
    }
    Ok(count)
}

/// Reader state across files: the number of lines still to skip and an incomplete line.
struct Reader {
    skip: u64,
    pending: Vec<u8>,
}

impl Reader {
    /// Sends everything from `offset` to the end of a file; returns its inode and where it ended.
    async fn drain(
        &mut self,
        path: &Path,
        offset: u64,
        filter: &mut Filter,
        out: &mpsc::Sender<io::Result<Bytes>>,
    ) -> io::Result<Option<(u64, u64)>> {
        use std::os::unix::fs::MetadataExt;
        let mut file = match File::open(path).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let inode = file.metadata().await?.ino();
        let mut offset = file.seek(SeekFrom::Start(offset)).await?;
        let mut reader = BufReader::with_capacity(64 * 1024, file);
        let mut chunk = BytesMut::new();
        loop {
            let read = reader.read_until(b'\n', &mut self.pending).await?;
            offset += read as u64;
            if read == 0 || self.pending.last() != Some(&b'\n') {
                break;
            }
            self.pending.pop();
            self.take_line(filter, &mut chunk);
            if chunk.len() > 32 * 1024 && out.send(Ok(chunk.split().freeze())).await.is_err() {
                return Ok(Some((inode, offset)));
            }
        }
        if !chunk.is_empty() {
            let _ = out.send(Ok(chunk.freeze())).await;
        }
        Ok(Some((inode, offset)))
    }

    fn take_line(&mut self, filter: &mut Filter, chunk: &mut BytesMut) {
        if self.skip > 0 {
            self.skip -= u64::from(parse(&self.pending).is_some_and(|l| !l.partial));
        } else {
            filter.render(&self.pending, chunk);
        }
        self.pending.clear();
    }

    /// Continues where the last read ended; after a rotation, first reads the rest of the rotated file.
    async fn advance(
        &mut self,
        path: &Path,
        current: Option<(PathBuf, u64, u64)>,
        filter: &mut Filter,
        out: &mpsc::Sender<io::Result<Bytes>>,
    ) -> io::Result<Option<(PathBuf, u64, u64)>> {
        use std::os::unix::fs::MetadataExt;
        let now = tokio::fs::metadata(path).await.ok();
        let offset = match (&current, &now) {
            (Some((_, inode, offset)), Some(now)) if now.ino() == *inode => {
                if now.len() == *offset {
                    return Ok(current);
                }
                *offset
            }
            (Some((_, _, offset)), Some(_)) => {
                let mut rotated = path.as_os_str().to_owned();
                rotated.push(".1");
                self.drain(Path::new(&rotated), *offset, filter, out).await?;
                0
            }
            _ => 0,
        };
        let position = self.drain(path, offset, filter, out).await?;
        Ok(position.map(|(inode, offset)| (path.to_owned(), inode, offset)))
    }

    /// Sends a last line that has no newline.
    async fn flush(&mut self, filter: &mut Filter, out: &mpsc::Sender<io::Result<Bytes>>) -> io::Result<()> {
        let mut chunk = BytesMut::new();
        if !self.pending.is_empty() {
            self.take_line(filter, &mut chunk);
        }
        if !chunk.is_empty() {
            let _ = out.send(Ok(chunk.freeze())).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
