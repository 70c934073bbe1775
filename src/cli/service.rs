//! Flags that name the service for a command: its configuration file, or its address.

use clap::Args;
use std::path::PathBuf;

/// The variable that replaces `--url`.
pub(crate) const URL_VARIABLE: &str = "POSTDATE_URL";

/// One of `--config` and `--url`.
#[derive(Clone, Debug, Default, Args)]
pub struct ServiceArgs {
    /// The configuration file (TOML) of the service
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The address of a running service instead, like https://postdate.example:8088; or the variable POSTDATE_URL
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub url: Option<String>,
    /// Without --config: the file with the token of the service
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub token_file: Option<PathBuf>,
    /// Without --config: the authorities (PEM) of the service; default: those of the system
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub ca: Option<PathBuf>,
}
