//! Images from files and from a registry on this machine, run for real.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use agent_sandbox_node::runtime::{ImageError, ImageService, PodRuntime, PullPolicy, PullProgress};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{Node, is_root, pod};

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn tar(entries: &[(&str, Vec<u8>, u32)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, data, mode) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(*mode);
        builder.append_data(&mut header, path, data.as_slice()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A shell and what it needs, taken from this machine.
fn shell_files() -> Vec<(String, Vec<u8>, u32)> {
    let listing = std::process::Command::new("ldd").args(["/bin/sh", "/bin/cat", "/bin/ls"]).output().unwrap();
    let text = String::from_utf8_lossy(&listing.stdout).into_owned();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    let mut paths: Vec<String> =
        libraries.map(str::to_owned).chain(["/bin/sh".into(), "/bin/cat".into(), "/bin/ls".into()]).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .map(|path| {
            let data = std::fs::read(&path).unwrap();
            (path.trim_start_matches('/').to_owned(), data, 0o755)
        })
        .collect()
}

/// An image of two layers; the second hides a file of the first.
struct Image {
    layers: Vec<Vec<u8>>,
    config: Vec<u8>,
    manifest: Vec<u8>,
}

fn image() -> Image {
    let mut first = shell_files();
    first.push(("data/hidden".into(), b"hidden".to_vec(), 0o644));
    first.push(("data/below".into(), b"from below".to_vec(), 0o644));
    let first: Vec<_> = first.iter().map(|(path, data, mode)| (path.as_str(), data.clone(), *mode)).collect();
    let second = [("data/.wh.hidden", Vec::new(), 0o644), ("data/above", b"from above".to_vec(), 0o644)];
    let tars = [tar(&first), tar(&second)];
    let layers: Vec<_> = tars.iter().map(|tar| gzip(tar)).collect();
    let config = serde_json::to_vec(&serde_json::json!({
        "os": "linux",
        "config": { "Cmd": ["/bin/sh", "-c", "ls /data; cat /data/below /data/above"], "Env": ["PATH=/bin"], "WorkingDir": "/work" },
        "rootfs": { "type": "layers", "diff_ids": tars.iter().map(|tar| digest(tar)).collect::<Vec<_>>() },
    }))
    .unwrap();
    let descriptors: Vec<_> = layers
        .iter()
        .map(|layer| serde_json::json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest(layer), "size": layer.len() }))
        .collect();
    let manifest = serde_json::to_vec(&serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len() },
        "layers": descriptors,
    }))
    .unwrap();
    Image { layers, config, manifest }
}

fn write_layout(image: &Image, folder: &Path) {
    let blobs = folder.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    for blob in image.layers.iter().chain([&image.config, &image.manifest]) {
        std::fs::write(blobs.join(&digest(blob)[7..]), blob).unwrap();
    }
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(&image.manifest), "size": image.manifest.len(),
        "annotations": { "org.opencontainers.image.ref.name": "layout-image:v1" },
    }] });
    std::fs::write(folder.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
    std::fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

async fn run_image(node: &Node, reference: &str) -> String {
    let image = node.runtime.ensure(reference, PullPolicy::IfNotPresent, &[], None).await.unwrap();
    node.runtime.create_pod(pod("img")).await.unwrap();
    let mut spec = node.container("img", "c", &["unused"]).await;
    spec.command = image.config.command.clone();
    spec.env = image.config.env.clone();
    spec.working_dir = image.config.working_dir.clone().unwrap();
    spec.user = agent_sandbox_node::runtime::User::default();
    spec.image = image;
    let exit = node.run("img", spec).await;
    let output = node.output("img", "c");
    node.runtime.remove_pod("img").await.unwrap();
    assert_eq!(exit.code, 0, "{output}");
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_layout_runs_with_its_whiteouts_and_defaults() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let folder = tempfile::tempdir().unwrap();
    write_layout(&image(), folder.path());
    assert_eq!(node.runtime.import_image(folder.path(), None).await.unwrap(), ["layout-image:v1"]);
    assert_eq!(run_image(&node, "layout-image:v1").await, "above\nbelow\nfrom belowfrom above");
    let missing = node.runtime.ensure("other-image", PullPolicy::Never, &[], None).await;
    assert!(matches!(missing, Err(ImageError::NotPresent(_))), "{missing:?}");
    assert!(node.runtime.prune_images(Vec::new()).await.unwrap() > 0);
    assert_eq!(std::fs::read_dir(node.data().join("images/layers")).unwrap().count(), 0);
}

/// A registry that serves one image, and counts blobs served.
async fn registry(image: Image, served: Arc<std::sync::atomic::AtomicUsize>) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let image = Arc::new(image);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (image, served) = (Arc::clone(&image), Arc::clone(&served));
            tokio::spawn(async move {
                let mut buffer = vec![0; 16 * 1024];
                let length = stream.read(&mut buffer).await.unwrap_or(0);
                let request = String::from_utf8_lossy(&buffer[..length]).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                let manifest = "application/vnd.oci.image.manifest.v1+json";
                let found = if path == "/v2/" {
                    Some(("text/plain", b"".to_vec()))
                } else if path.contains("/manifests/") {
                    Some((manifest, image.manifest.clone()))
                } else {
                    served.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let named = |blob: &&Vec<u8>| path.ends_with(&digest(blob));
                    let all = image.layers.iter().chain([&image.config]);
                    // A blob that is not what its name says is served for the first layer's name in `corrupt` images.
                    all.clone()
                        .find(named)
                        .or(image.layers.first().filter(|_| path.contains("/blobs/")))
                        .map(|b| ("application/octet-stream", b.clone()))
                };
                let (status, kind, body) = match found {
                    Some((kind, body)) => ("200 OK", kind, body),
                    None => ("404 Not Found", "text/plain", Vec::new()),
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\ndocker-distribution-api-version: registry/2.0\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_once_with_progress_and_runs() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let served = Arc::default();
    let port = registry(image(), Arc::clone(&served)).await;
    let reference = format!("127.0.0.1:{port}/team/app:v1");
    let (progress, watched) = tokio::sync::watch::channel(PullProgress::default());
    let pulls = (0..4).map(|_| node.runtime.ensure(&reference, PullPolicy::IfNotPresent, &[], Some(progress.clone())));
    for result in futures::future::join_all(pulls).await {
        result.unwrap();
    }
    let seen = *watched.borrow();
    assert!(seen.done == seen.total && seen.total > 0, "{seen:?}");
    assert_eq!(served.load(std::sync::atomic::Ordering::Relaxed), 3, "two layers and the configuration, once");
    assert_eq!(run_image(&node, &reference).await, "above\nbelow\nfrom belowfrom above");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_is_not_what_its_digest_says_is_refused() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let mut bad = image();
    let last = bad.layers[0].len() - 20;
    bad.layers[0][last] ^= 0xff;
    let port = registry(bad, Arc::default()).await;
    let reference = format!("127.0.0.1:{port}/team/app:v1");
    let result = node.runtime.ensure(&reference, PullPolicy::IfNotPresent, &[], None).await;
    assert!(result.is_err(), "{result:?}");
    let left = std::fs::read_dir(node.data().join("images/layers")).map(Iterator::count).unwrap_or(0);
    assert_eq!(left, 0);
}
