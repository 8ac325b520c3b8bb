//! Images from files and from a local registry, run as containers.

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

/// A shell and its libraries, copied from this machine.
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
    image_of(layers())
}

/// The contents of two layers.
fn layers() -> Vec<Vec<u8>> {
    let mut first = shell_files();
    first.push(("data/hidden".into(), b"hidden".to_vec(), 0o644));
    first.push(("data/below".into(), b"from below".to_vec(), 0o644));
    let first: Vec<_> = first.iter().map(|(path, data, mode)| (path.as_str(), data.clone(), *mode)).collect();
    let second = [("data/.wh.hidden", Vec::new(), 0o644), ("data/above", b"from above".to_vec(), 0o644)];
    vec![tar(&first), tar(&second)]
}

/// An image of these layers.
fn image_of(tars: Vec<Vec<u8>>) -> Image {
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

/// A registry that serves one image, and counts the served blobs.
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
                    // In corrupt images, the first layer is served for names that match no blob.
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

/// A Docker archive, as `docker save` writes it: configuration, layers and a list of images in one tar.
fn docker_archive(image: &Image, tars: &[Vec<u8>]) -> Vec<u8> {
    let layer = |number: usize| format!("layer-{number}/layer.tar");
    let list = serde_json::json!([{
        "Config": "config.json",
        "RepoTags": ["archive-image:v1"],
        "Layers": (0..tars.len()).map(layer).collect::<Vec<_>>(),
    }]);
    let mut entries = vec![
        ("config.json".to_owned(), image.config.clone()),
        ("manifest.json".to_owned(), serde_json::to_vec(&list).unwrap()),
    ];
    entries.extend(tars.iter().enumerate().map(|(number, tar)| (layer(number), tar.clone())));
    let entries: Vec<_> = entries.iter().map(|(path, data)| (path.as_str(), data.clone(), 0o644)).collect();
    tar(&entries)
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut out).unwrap();
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_docker_archive_runs_and_one_with_wrong_digests_is_refused() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let image = image();
    let tars: Vec<_> = image.layers.iter().map(|layer| gunzip(layer)).collect();
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("image.tar");
    std::fs::write(&archive, docker_archive(&image, &tars)).unwrap();
    assert_eq!(node.runtime.import_image(&archive, None).await.unwrap(), ["archive-image:v1"]);
    assert_eq!(run_image(&node, "archive-image:v1").await, "above\nbelow\nfrom belowfrom above");
    let swapped = [tars[1].clone(), tars[0].clone()];
    std::fs::write(&archive, docker_archive(&image, &swapped)).unwrap();
    node.runtime.prune_images(Vec::new()).await.unwrap();
    let swapped_layers = node.runtime.import_image(&archive, None).await;
    assert!(matches!(swapped_layers, Err(ImageError::DigestMismatch { .. })), "{swapped_layers:?}");
}

/// In an archive, the list of images could be a link to a file of the host, or a pipe that no process writes to.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_cannot_make_the_import_read_other_files() {
    let node = Node::start().await;
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret.json");
    std::fs::write(&secret, "[]").unwrap();
    for (number, kind) in [tar::EntryType::Symlink, tar::EntryType::Fifo].into_iter().enumerate() {
        for name in ["manifest.json", "index.json"] {
            let mut builder = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(0);
            header.set_mode(0o644);
            builder.append_link(&mut header, name, &secret).unwrap();
            let archive = folder.path().join(format!("{number}-{name}.tar"));
            std::fs::write(&archive, builder.into_inner().unwrap()).unwrap();
            let result =
                tokio::time::timeout(crate::fixture::DEADLINE, node.runtime.import_image(&archive, None)).await;
            let refused = result.expect("it answers at once").unwrap_err();
            assert!(matches!(refused, ImageError::BadLayer { .. }), "{name} {kind:?}: {refused:?}");
        }
    }
}

/// An image made with Debian's own tools: packed by tar, copied from a layout by skopeo, served by docker-registry.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_made_with_debians_tools_is_pulled_from_a_registry() {
    if !is_root() {
        return;
    }
    let missing: Vec<_> = ["skopeo", "docker-registry"]
        .into_iter()
        .filter(|program| !["/usr/bin", "/usr/sbin"].iter().any(|folder| Path::new(folder).join(program).exists()))
        .collect();
    if !missing.is_empty() {
        assert!(std::env::var_os("CI").is_none(), "{missing:?} must be installed");
        eprintln!("skipped: needs {missing:?} (Debian packages of the same names)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("layout");
    std::fs::create_dir(&layout).unwrap();
    write_layout(&image(), &layout);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let configuration = folder.path().join("registry.yml");
    let text = format!(
        "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
        folder.path().join("registry").display()
    );
    std::fs::write(&configuration, text).unwrap();
    let mut registry = std::process::Command::new("docker-registry")
        .arg("serve")
        .arg(&configuration)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let up = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(crate::fixture::DEADLINE, up).await.expect("the registry comes up");
    let reference = format!("127.0.0.1:{port}/team/debian:v1");
    let copied = std::process::Command::new("skopeo")
        .args(["--insecure-policy", "copy", "--dest-tls-verify=false"])
        .arg(format!("oci:{}:layout-image:v1", layout.display()))
        .arg(format!("docker://{reference}"))
        .output()
        .unwrap();
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    let node = Node::start().await;
    let (progress, watched) = tokio::sync::watch::channel(PullProgress::default());
    node.runtime.ensure(&reference, PullPolicy::Always, &[], Some(progress)).await.unwrap();
    let seen = *watched.borrow();
    assert!(seen.done == seen.total && seen.total > 0, "{seen:?}");
    assert_eq!(run_image(&node, &reference).await, "above\nbelow\nfrom belowfrom above");
    registry.kill().unwrap();
    registry.wait().unwrap();
}

/// Malicious layers: each is rejected with its reason, and nothing of it is stored.
#[tokio::test(flavor = "multi_thread")]
async fn malicious_layers_are_refused_when_pulled() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let mut traversal = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(1);
    header.set_mode(0o644);
    header.as_mut_bytes()[..14].copy_from_slice(b"../../escaped\0");
    header.set_cksum();
    traversal.append(&header, &b"x"[..]).unwrap();
    let mut bomb = tar::Header::new_gnu();
    bomb.set_size(64 << 30);
    bomb.set_mode(0o644);
    bomb.set_path("bomb").unwrap();
    bomb.set_cksum();
    for (layer, reason) in
        [(traversal.into_inner().unwrap(), "leads out of the image"), (bomb.as_bytes().to_vec(), "unpacks to more")]
    {
        let port = registry(image_of(vec![layer]), Arc::default()).await;
        let result = node.runtime.ensure(&format!("127.0.0.1:{port}/bad"), PullPolicy::Always, &[], None).await;
        let text = result.map_err(|error| error.to_string()).unwrap_err();
        assert!(text.contains(reason), "{text}");
        let left = std::fs::read_dir(node.data().join("images/layers")).map(Iterator::count).unwrap_or(0);
        assert_eq!(left, 0);
    }
}

/// The engine pulls as root and from within the operator's network, while users of the API name the images: what a
/// registry redirects to must not reach other services there.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_cannot_redirect_to_another_service_of_this_machine() {
    if std::env::vars().any(|(name, value)| name.to_lowercase().ends_with("_proxy") && !value.is_empty()) {
        eprintln!("skipped: a proxy is configured, which makes the connections instead");
        return;
    }
    let inside = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, target) = (listener.local_addr().unwrap().port(), inside.local_addr().unwrap());
    let reached = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = Arc::clone(&reached);
    tokio::spawn(async move {
        while inside.accept().await.is_ok() {
            seen.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 16 * 1024]).await;
            let head = format!(
                "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{target}/secret\r\ncontent-length: 0\r\n\r\n"
            );
            let _ = stream.write_all(head.as_bytes()).await;
        }
    });
    let node = Node::start().await;
    let refused = node.runtime.ensure(&format!("127.0.0.1:{port}/app:v1"), PullPolicy::Always, &[], None).await;
    let message = refused.expect_err("the redirect is not followed").to_string();
    assert!(message.contains("refused to connect to 127.0.0.1"), "{message}");
    assert!(!reached.load(std::sync::atomic::Ordering::Relaxed));
}
