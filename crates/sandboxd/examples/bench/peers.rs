//! The daemons that are compared, and the bare loops that they are compared with.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::http::Connection;

/// Number of transfers in one turn.
const ROUNDS: usize = 2;
const BUFFER: usize = 256 * 1024;

/// Throughput in megabytes per second, upload and download.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    pub(crate) up: f64,
    pub(crate) down: f64,
}

impl Transfer {
    /// The better value of each direction.
    pub(crate) fn best(self, other: Self) -> Self {
        Self { up: self.up.max(other.up), down: self.down.max(other.down) }
    }
}

/// The endpoints that transfer a file.
#[derive(Clone, Copy)]
pub(crate) enum Dialect {
    Runtime,
    Native,
    Workspace,
}

/// A running server.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    process: Child,
}

/// A temporary directory, removed at the end of the run.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("sandboxd-bench-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Peer {
    pub(crate) fn sandboxd(binary: &Path, base: &Path) -> io::Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(binary);
        command
            .arg("--listen")
            .arg(format!("127.0.0.1:{port}"))
            .arg("--base-dir")
            .arg(base)
            .arg("--root-dir")
            .arg(base);
        Self::start("sandboxd", command, port)
    }

    pub(crate) fn python(uvicorn: &Path, base: &Path) -> io::Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(uvicorn);
        // Started as in the published image.
        command.args(["--app-dir", "bench/sandboxd", "python_runtime:app", "--log-level", "trace"]);
        command.args(["--port", &port.to_string()]).env("SANDBOX_BASE_DIR", base);
        Self::start("python runtime", command, port)
    }

    /// Another daemon that accepts the flags of upstream's sandboxd.
    pub(crate) fn daemon(binary: &Path, base: &Path) -> io::Result<Self> {
        let (rest, grpc) = (free_port()?, free_port()?);
        let mut command = Command::new(binary);
        command.args(["--listen-host=127.0.0.1", &format!("--rest-port={rest}"), &format!("--grpc-port={grpc}")]);
        command.arg(format!("--root-dir={}", base.display()));
        Self::start("peer daemon", command, rest)
    }

    fn start(name: &'static str, mut command: Command, port: u16) -> io::Result<Self> {
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let peer = Self { name, address, process };
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{name} does not listen")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(500));
        Ok(peer)
    }

    /// Resident memory in megabytes.
    pub(crate) fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or_default() / 1024.0
    }

    pub(crate) fn transfer_in(&self, dialect: Dialect, size: usize) -> io::Result<Transfer> {
        match dialect {
            Dialect::Runtime => self.runtime_transfer(size),
            Dialect::Native => self.native_transfer(size),
            Dialect::Workspace => self.workspace_transfer(size),
        }
    }

    fn runtime_transfer(&self, size: usize) -> io::Result<Transfer> {
        let before = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"upload.bin\"\r\n\r\n";
        let after = "\r\n--b--\r\n";
        let head = format!(
            "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: {}\r\n\r\n",
            before.len() + size + after.len()
        );
        self.transfer(size, &head, [before.as_bytes(), after.as_bytes()], "/download/upload.bin")
    }

    fn native_transfer(&self, size: usize) -> io::Result<Transfer> {
        let path = "/sandbox/v1/files?path=native.bin";
        let head = format!("PUT {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n");
        self.transfer(size, &head, [b"", b""], path)
    }

    fn workspace_transfer(&self, size: usize) -> io::Result<Transfer> {
        let path = "/v1/files/workspace.bin";
        let head = format!("PUT {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n");
        self.transfer(size, &head, [b"", b""], path)
    }

    fn transfer(&self, size: usize, head: &str, [before, after]: [&[u8]; 2], down: &str) -> io::Result<Transfer> {
        let content = vec![b'x'; size];
        let up = best(|| {
            let mut connection = Connection::open(self.address)?;
            let started = Instant::now();
            connection.send(head, [before, &content, after])?;
            Ok(started.elapsed())
        })?;
        let down = best(|| {
            let mut connection = Connection::open(self.address)?;
            let started = Instant::now();
            let received = connection.get(down);
            assert_eq!(received, size, "the whole file arrives");
            Ok(started.elapsed())
        })?;
        Ok(Transfer { up: speed(size, up), down: speed(size, down) })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn best(mut once: impl FnMut() -> io::Result<Duration>) -> io::Result<Duration> {
    let mut best = once()?;
    for _ in 1..ROUNDS {
        best = best.min(once()?);
    }
    Ok(best)
}

fn speed(size: usize, time: Duration) -> f64 {
    size as f64 / 1e6 / time.as_secs_f64()
}

/// Writes the bytes of a socket to a new file, and nothing else.
pub(crate) fn bare_up(directory: &Path, size: usize) -> io::Result<f64> {
    let target = directory.join("bare.bin");
    let content = vec![b'x'; size];
    let time = best(|| {
        between(
            |mut stream| {
                let _ = std::fs::remove_file(&target);
                let mut file = std::fs::File::create(&target)?;
                copy(&mut stream, &mut file, size)?;
                stream.write_all(b"k")
            },
            |mut stream| {
                stream.write_all(&content)?;
                stream.read_exact(&mut [0])
            },
        )
    })?;
    Ok(speed(size, time))
}

/// Writes the bytes of a file to a socket, and nothing else.
pub(crate) fn bare_down(directory: &Path, size: usize) -> io::Result<f64> {
    let source = directory.join("bare.bin");
    let time = best(|| {
        between(
            |mut stream| copy(&mut std::fs::File::open(&source)?, &mut stream, size),
            |mut stream| copy(&mut stream, &mut io::sink(), size),
        )
    })?;
    Ok(speed(size, time))
}

/// Measures the client's side of one exchange.
fn between(
    server: impl FnOnce(TcpStream) -> io::Result<()> + Send,
    client: impl FnOnce(TcpStream) -> io::Result<()>,
) -> io::Result<Duration> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || server(listener.accept()?.0));
        let stream = TcpStream::connect(address)?;
        let started = Instant::now();
        client(stream)?;
        let time = started.elapsed();
        serving.join().unwrap_or_else(|_| Err(io::Error::other("the server failed")))?;
        Ok(time)
    })
}

fn copy(from: &mut impl Read, to: &mut impl Write, mut left: usize) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    while left > 0 {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all(&buffer[..read])?;
        left -= read.min(left);
    }
    Ok(())
}

pub(crate) fn many_files(directory: &Path, count: usize) -> io::Result<()> {
    let many: PathBuf = directory.join("many");
    std::fs::create_dir_all(&many)?;
    for number in 0..count {
        std::fs::write(many.join(format!("file-{number}")), "x")?;
    }
    Ok(())
}
