//! Arguments of `audit`.

use super::values::duration;
use clap::{Args, ValueEnum};
use std::time::Duration;

/// Output format of `audit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuditFormat {
    /// One line of text per record
    #[default]
    Text,
    /// One JSON object per line, as in the log
    Json,
}

#[derive(Args, Debug)]
pub(crate) struct AuditArgs {
    /// Keep printing new records
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print records of this sandbox, claim or other object
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print records of this user
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Print refused requests only
    #[arg(long)]
    pub(crate) denied: bool,
    /// Print records that are not older than this, for example 10m or 2h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: AuditFormat,
}
