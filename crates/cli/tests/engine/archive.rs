//! A small image with a shell, as a Docker archive and in a registry on this machine.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use serde_json::json;

/// One layer with a shell, and the image configuration.
pub(crate) struct Image {
    layer: Vec<u8>,
    config: Vec<u8>,
}

impl Image {
    /// A shell, `cat`, `sleep` and a file that only this image has.
    pub(crate) fn with_shell() -> Self {
        let layer = layer();
        let config = json!({
            "os": "linux",
            "config": {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        });
        Self { layer, config: serde_json::to_vec(&config).unwrap() }
    }

    /// Writes the image in the format of `docker save`.
    pub(crate) fn save(&self, path: &Path, name: &str) {
        let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).to_string();
        let mut archive = tar::Builder::new(fs::File::create(path).unwrap());
        for (name, content) in [
            ("config.json", self.config.as_slice()),
            ("layer.tar", &self.layer),
            ("manifest.json", manifest.as_bytes()),
        ] {
            append(&mut archive, name, content, 0o644);
        }
        archive.finish().unwrap();
    }

    /// Serves the image as `any/name:any-tag` on a loopback port, until the test ends.
    pub(crate) fn serve(self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let image = Arc::new(self);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let image = image.clone();
                std::thread::spawn(move || image.answer(stream));
            }
        });
        port
    }

    fn answer(&self, mut stream: TcpStream) {
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&self.config), "size": self.config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(&self.layer), "size": self.layer.len()}],
        });
        let manifest = serde_json::to_vec(&manifest).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let mut request = String::new();
            if reader.read_line(&mut request).unwrap_or(0) == 0 {
                return;
            }
            let mut header = String::new();
            while reader.read_line(&mut header).is_ok_and(|length| length > 2) {
                header.clear();
            }
            let path = request.split(' ').nth(1).unwrap_or_default();
            let wanted = path.rsplit('/').next().unwrap_or_default();
            let (kind, body): (&str, &[u8]) = match path {
                "/v2/" => ("application/json", b"{}"),
                _ if path.contains("/manifests/") => ("application/vnd.oci.image.manifest.v1+json", &manifest),
                _ if wanted == digest(&self.config) => ("application/octet-stream", &self.config),
                _ => ("application/octet-stream", &self.layer),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nDocker-Content-Digest: {}\r\n\r\n",
                body.len(),
                digest(body)
            );
            let body = if request.starts_with("HEAD ") { &[] } else { body };
            if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_err() {
                return;
            }
        }
    }
}

fn layer() -> Vec<u8> {
    let programs = ["/bin/sh", "/bin/cat", "/bin/sleep"];
    let listing = Command::new("ldd").args(programs).output().unwrap();
    let text = String::from_utf8(listing.stdout).unwrap();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    let mut paths: Vec<&str> = libraries.chain(programs).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut archive = tar::Builder::new(Vec::new());
    for path in paths {
        append(&mut archive, path.trim_start_matches('/'), &fs::read(path).unwrap(), 0o755);
    }
    append(&mut archive, "data/here", b"in the image\n", 0o644);
    archive.into_inner().unwrap()
}

fn append(archive: &mut tar::Builder<impl std::io::Write>, name: &str, content: &[u8], mode: u32) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    archive.append_data(&mut header, name, content).unwrap();
}

fn digest(bytes: &[u8]) -> String {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    format!("sha256:{}", text.split(' ').next().unwrap())
}
