//! Tests of logs as `kubectl logs` requests them.

use super::*;

const SAMPLE: &str = "2026-01-01T00:00:01.5Z stdout F one\n\
    2026-01-01T00:00:02Z stderr F two\n\
    2026-01-01T00:00:03Z stdout P thr\n\
    2026-01-01T00:00:03Z stdout F ee\n\
    2026-01-01T00:00:04Z stdout F \n";

async fn collect(path: &Path, options: LogOptions) -> String {
    let (sender, mut chunks) = mpsc::channel(64);
    let reading = read(path.to_owned(), options, std::future::pending(), sender);
    let collecting = async {
        let mut text = Vec::new();
        while let Some(chunk) = chunks.recv().await {
            text.extend_from_slice(&chunk.unwrap());
        }
        String::from_utf8(text).unwrap()
    };
    let (done, text) = tokio::join!(reading, collecting);
    done.unwrap();
    text
}

fn log(content: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    std::fs::write(&path, content).unwrap();
    (dir, path)
}

#[tokio::test]
async fn d_233_lines_come_out_as_the_container_wrote_them() {
    let (_dir, path) = log(SAMPLE);
    assert_eq!(collect(&path, LogOptions::default()).await, "one\ntwo\nthree\n\n");
    let stdout = LogOptions { stream: LogStream::Stdout, ..LogOptions::default() };
    assert_eq!(collect(&path, stdout).await, "one\nthree\n\n");
    let stderr = LogOptions { stream: LogStream::Stderr, ..LogOptions::default() };
    assert_eq!(collect(&path, stderr).await, "two\n");
}

#[tokio::test]
async fn tail_since_limit_and_timestamps_are_honoured() {
    let (_dir, path) = log(SAMPLE);
    let tail = |n| LogOptions { tail_lines: Some(n), ..LogOptions::default() };
    assert_eq!(collect(&path, tail(2)).await, "three\n\n");
    assert_eq!(collect(&path, tail(0)).await, "");
    assert_eq!(collect(&path, tail(99)).await, "one\ntwo\nthree\n\n");
    let since = LogOptions { since: Some("2026-01-01T00:00:03Z".parse().unwrap()), ..LogOptions::default() };
    assert_eq!(collect(&path, since).await, "three\n\n");
    let limit = LogOptions { limit_bytes: Some(6), ..LogOptions::default() };
    assert_eq!(collect(&path, limit).await, "one\ntw");
    let stamped = LogOptions { timestamps: true, tail_lines: Some(2), ..LogOptions::default() };
    assert_eq!(collect(&path, stamped).await, "2026-01-01T00:00:03Z three\n2026-01-01T00:00:04Z \n");
}

#[tokio::test]
async fn rotated_files_are_read_oldest_first() {
    let (dir, path) = log("2026-01-01T00:00:03Z stdout F three\n");
    std::fs::write(dir.path().join("0.log.1"), "2026-01-01T00:00:02Z stdout F two\n").unwrap();
    std::fs::write(dir.path().join("0.log.2"), "2026-01-01T00:00:01Z stdout F one\n").unwrap();
    assert_eq!(collect(&path, LogOptions::default()).await, "one\ntwo\nthree\n");
    assert_eq!(String::from_utf8(tail(&path, 2, 100).await.unwrap()).unwrap(), "two\nthree\n");
    assert_eq!(String::from_utf8(tail(&path, 2, 5).await.unwrap()).unwrap(), "hree\n", "only the end is kept");
}

#[tokio::test]
async fn d_233_following_goes_on_through_growth_and_rotation_until_the_end() {
    let (dir, path) = log("2026-01-01T00:00:01Z stdout F one\n");
    let (sender, mut chunks) = mpsc::channel(64);
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let ended = async move {
        let _ = ended.await;
    };
    let reading = tokio::spawn(read(path.clone(), options, ended, sender));
    let mut next = async || String::from_utf8(chunks.recv().await.unwrap().unwrap().to_vec()).unwrap();
    assert_eq!(next().await, "one\n");
    let append = |text: &str| {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    append("2026-01-01T00:00:02Z stdout F two\n");
    assert_eq!(next().await, "two\n");
    append("2026-01-01T00:00:03Z stdout F three\n");
    std::fs::rename(&path, dir.path().join("0.log.1")).unwrap();
    append("2026-01-01T00:00:04Z stdout F four\n");
    let mut seen = next().await;
    while seen != "three\nfour\n" {
        seen += &next().await;
    }
    append("2026-01-01T00:00:05Z stdout F five\n");
    end.send(()).unwrap();
    assert_eq!(next().await, "five\n");
    reading.await.unwrap().unwrap();
    assert!(chunks.recv().await.is_none());
}

#[test]
fn malformed_lines_are_ignored() {
    assert_eq!(parse(b"hello"), None);
    assert_eq!(parse(b"2026 stdin F x"), None);
    let line = parse(b"2026-01-01T00:00:01Z stderr P a b  c").unwrap();
    assert_eq!((line.stdout, line.partial, line.text), (false, true, &b"a b  c"[..]));
}

#[tokio::test]
async fn a_missing_log_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(collect(&dir.path().join("none"), LogOptions::default()).await, "");
}
