//! Writes the man pages of all commands into a folder: `man FOLDER`. `make dist` runs it.

use clap::CommandFactory;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| ".".into());
    clap_mangen::generate_to(postdate::Cli::command(), &folder)?;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // The help after the options has lines of its own: examples and tables.
        let page = std::fs::read_to_string(&path)?
            .replace(".SH EXTRA\n", ".SH NOTES\n.nf\n")
            .replace(".SH VERSION\n", ".fi\n.SH VERSION\n");
        std::fs::write(path, page)?;
    }
    Ok(())
}
