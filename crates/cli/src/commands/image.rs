//! `image`: the local image store. A running engine owns the store and carries out the requests; without one this
//! process opens the store itself.

mod login;

use super::progress::Progress;
use crate::{
    args::{GlobalArgs, ImageAliasArgs, ImageArgs, ImageCommand, ImageImportArgs, ImagePullArgs, OutputFormat},
    output::{self, Table},
};
use agent_sandbox_engine::{
    DataDir, EngineReply, EngineRequest, NodeConfig, RequestContext, handle_request, send_request,
};
use agent_sandbox_node::{
    kernel::ImageAlias,
    runtime::{ImageSummary, PodRuntime as _, PullProgress},
};
use anyhow::{Context as _, Result, bail};
use std::{
    io::{self, Read as _, Write as _},
    path::Path,
    sync::Arc,
};
use tokio::sync::watch;

pub(crate) use login::find as find_login;

const MEBIBYTE: f64 = 1_048_576.0;
/// Number of characters of a digest that tables show.
const SHORT_DIGEST: usize = 19;

pub(crate) async fn image(global: &GlobalArgs, args: ImageArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    match args.command {
        ImageCommand::Pull(args) => pull(&data, args).await,
        ImageCommand::Import(args) => import(&data, args).await,
        ImageCommand::List(args) => {
            let EngineReply::Images(images) = request(&data, EngineRequest::List, None).await? else {
                return unexpected_reply();
            };
            let names = || images.iter().map(|image| format!("{}\n", image.name)).collect();
            output::emit(args.output.output, &images, names, || table(&images))
        }
        ImageCommand::Remove(args) => {
            for reference in args.images {
                let remove = EngineRequest::Remove { reference: reference.clone() };
                let EngineReply::Removed { freed } = request(&data, remove, None).await? else {
                    return unexpected_reply();
                };
                output::print(&format!("image {reference} removed, {:.1} MiB freed\n", freed as f64 / MEBIBYTE))?;
            }
            Ok(())
        }
        ImageCommand::Alias(args) => alias(&data, args).await,
    }
}

async fn pull(data: &DataDir, args: ImagePullArgs) -> Result<()> {
    if args.image == "host" {
        bail!("the image `host` is this machine itself; there is nothing to fetch");
    }
    let credentials = match args.username {
        Some(username) => Some(login::from_stdin(&args.image, username)?),
        None => login::find(&args.image)?,
    };
    let pull = EngineRequest::Pull { reference: args.image.clone(), credentials };
    report(args.output.output, request(data, pull, Some(&args.image)).await?)
}

async fn import(data: &DataDir, args: ImageImportArgs) -> Result<()> {
    let spooled;
    let path = if args.path == Path::new("-") {
        spooled = spool()?;
        spooled.path()
    } else {
        &args.path
    };
    let path = path.canonicalize().with_context(|| format!("cannot read {}", args.path.display()))?;
    check_archive(&path, &args.path)?;
    let reply = request(data, EngineRequest::Import { path, name: args.name }, None).await?;
    if let EngineReply::Present { names, .. } = &reply
        && names.is_empty()
    {
        bail!("the archive gives its image no name; choose one with --name");
    }
    report(args.output.output, reply)
}

/// Refuses a file that is no archive: an import would only say that a layer is damaged.
fn check_archive(path: &Path, shown: &Path) -> Result<()> {
    const GZIP: &[u8] = &[0x1f, 0x8b];
    const ZSTANDARD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    /// Offset of `ustar` in the first header of a tar archive.
    const TAR_MAGIC: usize = 257;
    if path.is_dir() {
        return Ok(());
    }
    let mut start = Vec::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(512).read_to_end(&mut start));
    file.with_context(|| format!("cannot read {}", shown.display()))?;
    let is_tar = start.get(TAR_MAGIC..).is_some_and(|rest| rest.starts_with(b"ustar"));
    if is_tar || start.starts_with(GZIP) || start.starts_with(ZSTANDARD) {
        return Ok(());
    }
    bail!(
        "{} is not an image: `image import` reads an OCI layout (folder or archive) or the archive that `docker save` writes",
        shown.display()
    )
}

/// Copies standard input to a file: archives are read more than once.
fn spool() -> Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new().context("cannot create a temporary file for standard input")?;
    io::copy(&mut io::stdin().lock(), &mut file).context("cannot read standard input")?;
    file.flush()?;
    Ok(file)
}

async fn alias(data: &DataDir, args: ImageAliasArgs) -> Result<()> {
    let change = match (args.pattern, args.image, args.remove, args.clear) {
        (Some(pattern), Some(image), _, _) => EngineRequest::SetAlias { pattern, image },
        (_, _, Some(pattern), _) => {
            let EngineReply::Aliases(lines) = request(data, EngineRequest::Aliases, None).await? else {
                return unexpected_reply();
            };
            if !lines.iter().any(|line| line.pattern == pattern) {
                bail!("no alias has the pattern `{pattern}`; `agent-sandbox image alias` shows the table");
            }
            EngineRequest::RemoveAlias { pattern }
        }
        (_, _, _, true) => EngineRequest::ClearAliases,
        _ => EngineRequest::Aliases,
    };
    let EngineReply::Aliases(lines) = request(data, change, None).await? else { return unexpected_reply() };
    let names = || lines.iter().map(|line| format!("{}\n", line.pattern)).collect();
    output::emit(args.output.output, &lines, names, || alias_table(&lines))
}

/// Sends a request to the running engine, or carries it out when none runs. A terminal shows progress under the name in
/// `transfer`.
async fn request(data: &DataDir, request: EngineRequest, transfer: Option<&str>) -> Result<EngineReply> {
    let line = transfer.map(|what| Progress::start(what.to_owned(), None));
    let show = |progress: PullProgress| {
        if let Some(line) = &line {
            line.set(progress.done, progress.total);
        }
    };
    let reply = match data.running() {
        Some(_) => send_request(&data.control(), &request, show).await.map_err(Into::into),
        None => handle_without_engine(data, request, show).await,
    };
    if let Some(line) = line {
        line.finish();
    }
    reply
}

async fn handle_without_engine(
    data: &DataDir,
    request: EngineRequest,
    show: impl Fn(PullProgress),
) -> Result<EngineReply> {
    data.create().with_context(|| format!("cannot make the data folder {}", data.path().display()))?;
    let config = NodeConfig { images: Some(data.images()), ..NodeConfig::default() };
    let (runtime, _) = config.open(&data.node()).await?;
    // Finds the sandboxes of an engine that was killed: the images that they use must stay.
    runtime.list().await.context("cannot find out which sandboxes run")?;
    let (progress, mut seen) = watch::channel(PullProgress::default());
    let context = RequestContext { runtime: runtime.clone(), node: None, metrics: Arc::new(String::new) };
    let work = handle_request(&context, request, progress);
    tokio::pin!(work);
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome,
            Ok(()) = seen.changed() => show(*seen.borrow_and_update()),
        }
    };
    runtime.close();
    Ok(outcome?)
}

fn report(format: OutputFormat, reply: EngineReply) -> Result<()> {
    let EngineReply::Present { names, digest } = reply else { return unexpected_reply() };
    let value = serde_json::json!({"names": names, "digest": digest});
    let lines = || names.iter().map(|name| format!("{name}\n")).collect();
    let text = || {
        let digest = digest.as_ref().map(|digest| format!(", {digest}")).unwrap_or_default();
        names.iter().map(|name| format!("image {name} is here{digest}\n")).collect()
    };
    output::emit(format, &value, lines, text)
}

fn unexpected_reply() -> Result<()> {
    bail!("the running engine sent an unexpected reply; are both of the same version?")
}

fn table(images: &[ImageSummary]) -> String {
    if images.is_empty() {
        return "no images; `host` needs none, others come with `agent-sandbox image pull NAME`\n".to_owned();
    }
    let mut table = Table::new(&["NAME", "DIGEST", "SIZE"]);
    for image in images {
        let size = format!("{:.1} MiB", image.size as f64 / MEBIBYTE);
        let digest = image.digest.chars().take(SHORT_DIGEST).collect();
        table.row(vec![image.name.clone(), digest, size]);
    }
    table.render()
}

fn alias_table(lines: &[ImageAlias]) -> String {
    if lines.is_empty() {
        return "no image aliases\n".to_owned();
    }
    let mut table = Table::new(&["PATTERN", "IMAGE"]);
    for line in lines {
        table.row(vec![line.pattern.clone(), line.image.clone()]);
    }
    table.render()
}
