//! Opens a link in the user's browser.
//!
//! Other users of the machine can read the arguments of processes. The browser therefore gets the address of a listener
//! of this process, which leads one request to the link and then ends.

use anyhow::{Context as _, Result, bail};
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

const PROGRAM: &str = "xdg-open";
/// Timeout for the browser's request.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for reading one request.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a request's head in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// The program that opens addresses in a browser.
pub(super) fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(PROGRAM)).find(|file| file.is_file());
    found.with_context(|| {
        format!(
            "--open: no program here opens a browser: {PROGRAM} is not installed (Debian: apt-get install xdg-utils); \
             leave --open out and open the link yourself"
        )
    })
}

/// Starts the browser and leads it to `link`.
pub(super) async fn open(program: &Path, link: &str) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot listen for the browser")?;
    let once = format!("/{:032x}", rand::random::<u128>());
    let address = format!("http://{}{once}", listener.local_addr()?);
    let mut command = tokio::process::Command::new(program);
    command.arg(&address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let served = async {
        loop {
            let (stream, _) = listener.accept().await.context("cannot wait for the browser")?;
            if lead(stream, &once, link).await.unwrap_or(false) {
                return Ok(());
            }
        }
    };
    let failed = async {
        let status = child.wait().await.context("cannot wait for the browser's start")?;
        if status.success() {
            return std::future::pending::<Result<()>>().await;
        }
        let mut said = String::new();
        if let Some(mut errors) = child.stderr.take() {
            let _ = (&mut errors).take(MAX_HEAD as u64).read_to_string(&mut said).await;
        }
        let name = program.display();
        bail!("{name} found no browser ({status}): {}; open the link yourself", said.trim())
    };
    tokio::select! {
        served = served => served,
        failed = failed => failed,
        () = tokio::time::sleep(TIMEOUT) => bail!("no browser asked for the link within {TIMEOUT:?}; open it yourself"),
    }
}

/// Answers one request; whether it was the one that the browser was started for.
async fn lead(mut stream: TcpStream, once: &str, link: &str) -> std::io::Result<bool> {
    let mut head = Vec::new();
    let read = async {
        while head.len() < MAX_HEAD && !head.windows(4).any(|window| window == b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                break;
            }
        }
        std::io::Result::Ok(())
    };
    tokio::time::timeout(READ_TIMEOUT, read).await??;
    let wanted = head.starts_with(format!("GET {once} HTTP/1.").as_bytes());
    let answer = match wanted {
        true => format!("302 Found\r\nLocation: {link}\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store"),
        false => "404 Not Found".to_owned(),
    };
    let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(wanted)
}
