//! `cp`: files and folders into and out of a sandbox.

mod pack;

use super::{objects::find_sandbox, progress::Progress};
use crate::{
    args::{CpArgs, GlobalArgs},
    cluster::ClusterClient,
    output,
};
use agent_sandbox_client::{self as sdk, ExecOptions, Files, RemoteKind};
use anyhow::{Context as _, Result, bail};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt};
use tokio_util::io::ReaderStream;

/// Bytes read from a local file at a time.
const CHUNK: usize = 256 * 1024;

/// Source or destination of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    /// `-`: standard input as a source, standard output as a destination.
    Stream,
    Local(PathBuf),
    Remote {
        sandbox: String,
        path: String,
    },
}

/// Parses `NAME:PATH` as a path in a sandbox. Text with a slash before the colon, or without a colon, is a local path.
/// `~` is the home folder: of the user that commands in the sandbox run as, or of this user.
fn parse(text: &str) -> Result<Location> {
    match text.split_once(':') {
        Some((name, path)) if !name.contains('/') && !name.is_empty() && name != "." => {
            let path = if path.is_empty() { "." } else { path };
            Ok(Location::Remote { sandbox: name.to_owned(), path: path.to_owned() })
        }
        _ if text.is_empty() => bail!("source and destination must not be empty"),
        _ if text == "-" => Ok(Location::Stream),
        _ => match (text.strip_prefix("~/"), std::env::var_os("HOME")) {
            (Some(rest), Some(home)) => Ok(Location::Local(Path::new(&home).join(rest))),
            _ => Ok(Location::Local(PathBuf::from(text))),
        },
    }
}

pub(crate) async fn copy(global: &GlobalArgs, args: CpArgs) -> Result<()> {
    let mut locations = args.paths.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    let Some(destination) = locations.pop() else { bail!("give a source and a destination") };
    let several = locations.len() > 1;
    match destination {
        Location::Remote { sandbox, path } => {
            // A trailing slash means: into this folder.
            let path = if several { format!("{}/", path.trim_end_matches('/')) } else { path };
            check_local(&locations, several)?;
            let cluster = ClusterClient::open_used(global).await?;
            cluster.announce_change();
            let pod = running(&cluster, &sandbox).await?;
            let path = in_sandbox(&cluster, &pod, &sandbox, path).await?;
            let files = Files::new(&cluster.client, &pod);
            for source in &locations {
                send(&files, source, &path).await?;
            }
        }
        destination => {
            if several && !matches!(&destination, Location::Local(path) if path.is_dir()) {
                bail!("several sources need a folder as their destination");
            }
            for source in &locations {
                let Location::Remote { sandbox, path } = source else {
                    bail!("source or destination must be in a sandbox: write it as NAME:PATH");
                };
                let cluster = ClusterClient::open_used(global).await?;
                let pod = running(&cluster, sandbox).await?;
                let path = &in_sandbox(&cluster, &pod, sandbox, path.clone()).await?;
                let files = Files::new(&cluster.client, &pod);
                match (files.kind(path).await?, &destination) {
                    (RemoteKind::Missing, _) => bail!("`{path}` does not exist in `{sandbox}`"),
                    (RemoteKind::Directory, Location::Local(to)) => receive_folder(&files, path, to).await?,
                    (RemoteKind::File, Location::Local(to)) => receive_file(&files, path, to).await?,
                    (RemoteKind::Directory, _) => bail!("`{path}` is a folder; only a file can go to standard output"),
                    (RemoteKind::File, _) => print_file(&files, path).await?,
                }
            }
        }
    }
    Ok(())
}

/// Checks all sources before a cluster is chosen.
fn check_local(sources: &[Location], several: bool) -> Result<()> {
    for source in sources {
        match source {
            Location::Local(path) => {
                std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
            }
            Location::Stream if several => bail!("standard input cannot be one of several sources"),
            Location::Stream => {}
            Location::Remote { .. } => {
                bail!("copying from sandbox to sandbox is not supported; copy to this machine first")
            }
        }
    }
    Ok(())
}

async fn send(files: &Files<'_>, source: &Location, path: &str) -> Result<()> {
    match source {
        Location::Local(source) if source.is_dir() => send_folder(files, source, path).await,
        Location::Local(source) => send_file(files, source, path).await,
        _ => {
            if path.ends_with('/') || files.kind(path).await? == RemoteKind::Directory {
                bail!("`{path}` is a folder; name the file that standard input is written to");
            }
            Ok(files.write(path, ReaderStream::with_capacity(tokio::io::stdin(), CHUNK)).await?)
        }
    }
}

async fn print_file(files: &Files<'_>, path: &str) -> Result<()> {
    let mut content = Box::pin(files.read(path).await?);
    while let Some(chunk) = content.try_next().await? {
        output::print_bytes(&chunk)?;
    }
    Ok(())
}

/// The path with the home folder of the user that commands run as in place of `~`.
async fn in_sandbox(cluster: &ClusterClient, pod: &Pod, sandbox: &str, path: String) -> Result<String> {
    if path != "~" && !path.starts_with("~/") {
        return Ok(path);
    }
    let home = home(cluster, pod).await;
    let home = home.with_context(|| {
        format!("cannot find the home folder of `{sandbox}`; write the whole path instead of `{path}`")
    })?;
    Ok(below_home(&home, &path))
}

/// A path that starts with `~`, with a home folder in its place.
fn below_home(home: &str, path: &str) -> String {
    let path = format!("{}{}", home.trim_end_matches('/'), path.trim_start_matches('~'));
    if path.is_empty() { "/".to_owned() } else { path }
}

/// The home folder as a shell in the sandbox knows it.
async fn home(cluster: &ClusterClient, pod: &Pod) -> Result<String> {
    let command = ["/bin/sh", "-c", "printf %s ~"].map(str::to_owned);
    let mut running = sdk::exec(&cluster.client, pod, &command, &ExecOptions::default()).await?;
    let Some(mut stdout) = running.process().stdout() else { bail!("the command has no output") };
    let mut home = String::new();
    stdout.read_to_string(&mut home).await.context("cannot read the output of a shell")?;
    match running.exit().await? {
        0 if home.starts_with('/') => Ok(home),
        0 => bail!("a shell in it knows none"),
        code => bail!("a shell in it ended with exit code {code}"),
    }
}

async fn running(cluster: &ClusterClient, name: &str) -> Result<Pod> {
    let found = find_sandbox(cluster, name).await?;
    Ok(sdk::awake_pod(&cluster.client, &found.sandbox).await?)
}

/// Path of the copy in the sandbox: inside `path` if that is a folder, else `path` itself.
async fn remote_name(files: &Files<'_>, source: &Path, path: &str) -> Result<String> {
    let name = source.canonicalize()?.file_name().map(|name| name.to_string_lossy().into_owned());
    let into_folder = path.ends_with('/') || files.kind(path).await? == RemoteKind::Directory;
    Ok(match name {
        Some(name) if into_folder => format!("{}/{name}", path.trim_end_matches('/')),
        _ => path.to_owned(),
    })
}

async fn send_file(files: &Files<'_>, source: &Path, path: &str) -> Result<()> {
    let path = remote_name(files, source, path).await?;
    let file = tokio::fs::File::open(source).await.with_context(|| format!("cannot read {}", source.display()))?;
    let progress = Progress::start(source.display().to_string(), Some(file.metadata().await?.len()));
    let content = ReaderStream::with_capacity(file, CHUNK).inspect_ok(progress.counter());
    files.write(&path, content).await?;
    progress.finish();
    Ok(())
}

async fn send_folder(files: &Files<'_>, source: &Path, path: &str) -> Result<()> {
    let path = remote_name(files, source, path).await?;
    let progress = Progress::start(source.display().to_string(), None);
    let archive = pack::pack(source.to_owned())?.inspect_ok(progress.counter());
    files.write_tar(&path, archive).await?;
    progress.finish();
    Ok(())
}

/// Local path of the copy: inside `destination` if that is a folder, else `destination` itself.
fn local_name(path: &str, destination: &Path) -> PathBuf {
    match Path::new(path).file_name() {
        Some(name) if destination.is_dir() => destination.join(name),
        _ => destination.to_owned(),
    }
}

async fn receive_file(files: &Files<'_>, path: &str, destination: &Path) -> Result<()> {
    let destination = local_name(path, destination);
    let folder = destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = destination.display().to_string();
    // In the destination's folder, so that the last step is a rename: a transfer that fails leaves the old file.
    let partial = tempfile::NamedTempFile::new_in(folder).with_context(|| format!("cannot write {shown}"))?;
    let mut file = tokio::fs::File::from_std(partial.reopen()?);
    let progress = Progress::start(path.to_owned(), None);
    let mut content = Box::pin(files.read(path).await?.inspect_ok(progress.counter()));
    while let Some(chunk) = content.try_next().await? {
        file.write_all(&chunk).await.with_context(|| format!("cannot write {shown}"))?;
    }
    file.sync_all().await?;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    partial.as_file().set_permissions(readable)?;
    partial.persist(&destination).with_context(|| format!("cannot write {shown}"))?;
    progress.finish();
    Ok(())
}

async fn receive_folder(files: &Files<'_>, path: &str, destination: &Path) -> Result<()> {
    let destination = local_name(path, destination);
    let progress = Progress::start(path.to_owned(), None);
    let archive = files.read_tar(path).await?.inspect_ok(progress.counter());
    pack::unpack(archive, destination).await?;
    progress.finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_before_a_colon_is_a_sandbox() {
        let remote = |sandbox: &str, path: &str| Location::Remote { sandbox: sandbox.into(), path: path.into() };
        assert_eq!(parse("box:/home/user/a").unwrap(), remote("box", "/home/user/a"));
        assert_eq!(parse("box:").unwrap(), remote("box", "."));
        assert_eq!(parse("./a:b").unwrap(), Location::Local("./a:b".into()));
        assert_eq!(parse("/a:b").unwrap(), Location::Local("/a:b".into()));
        assert_eq!(parse("a").unwrap(), Location::Local("a".into()));
        assert_eq!(parse("box:~/a").unwrap(), remote("box", "~/a"));
        assert_eq!(parse("box:~").unwrap(), remote("box", "~"));
        assert_eq!(parse("-").unwrap(), Location::Stream);
        assert!(parse("").is_err());
    }

    #[test]
    fn a_tilde_is_the_home_folder_in_the_sandbox() {
        assert_eq!(below_home("/root", "~/a"), "/root/a");
        assert_eq!(below_home("/home/user/", "~"), "/home/user");
        assert_eq!(below_home("/root", "~/"), "/root/");
        assert_eq!((below_home("/", "~"), below_home("/", "~/a")), ("/".to_owned(), "/a".to_owned()));
    }
}
