//! Writes the man pages of all commands into a folder: `man FOLDER`. `make dist` runs it.

use clap::CommandFactory;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| ".".into());
    clap_mangen::generate_to(postdate::Cli::command(), folder)
}
