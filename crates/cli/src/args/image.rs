//! Arguments of `image`.

use super::OutputArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image from a registry
    Pull(ImagePullArgs),
    /// Import an image from a file: an OCI layout (folder or archive) or a Docker archive
    Import(ImageImportArgs),
    /// List the images on this machine
    #[command(visible_alias = "ls")]
    List(ImageListArgs),
    /// Remove images that no sandbox needs
    #[command(visible_alias = "rm")]
    Remove(ImageRemoveArgs),
    /// Show or change image aliases: local images that are used instead of others
    Alias(ImageAliasArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ImagePullArgs {
    /// Image to pull, for example docker.io/library/python:3.13
    pub(crate) image: String,
    /// User name for the registry; without it the logins of docker and podman are used
    #[arg(long, value_name = "NAME", requires = "password_stdin")]
    pub(crate) username: Option<String>,
    /// Read the password from standard input
    #[arg(long, requires = "username")]
    pub(crate) password_stdin: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ImageImportArgs {
    /// Folder or archive; `-` reads an archive from standard input
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Name to give the image, instead of its own
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ImageListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ImageRemoveArgs {
    /// Images to remove
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ImageAliasArgs {
    /// Last part of an image's name, or its whole name; `*` matches anything
    #[arg(requires = "image")]
    pub(crate) pattern: Option<String>,
    /// The local image to use instead, `host` for this machine's own programs
    #[arg(requires = "pattern")]
    pub(crate) image: Option<String>,
    /// Remove the alias with this pattern
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["pattern", "clear"])]
    pub(crate) remove: Option<String>,
    /// Remove all aliases
    #[arg(long, conflicts_with = "pattern")]
    pub(crate) clear: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
