//! Flags that tell how a command prints its result.

use clap::{Args, ValueEnum};

/// One of `--output` and `--json`.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct OutputArgs {
    /// Lines for people, or one JSON document
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// The same as --output json; docs/commands.md describes the document
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl OutputArgs {
    pub(crate) fn is_json(self) -> bool {
        self.json || self.output == Output::Json
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}
