//! What `postdate` does beside serving: each command is a file or a folder, and ends by itself.

mod check;
mod demo;
mod ledger;
mod page;
mod pending;
mod reset;
mod send;
mod subject;

pub(crate) use check::check;
pub(crate) use demo::demo;
pub(crate) use ledger::ledger;
pub(crate) use pending::pending;
pub(crate) use reset::reset;
pub(crate) use send::send;

use crate::cli::CompletionArgs;
use anyhow::Result;
use std::future::Future;

/// How a command ended that did what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// What was looked at is not in order.
    Failing,
    /// What was looked for is not there.
    Nothing,
}

/// What was asked for cannot be: nothing was done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(String);

/// Prints the completion script of a shell.
pub(crate) fn complete(completion: &CompletionArgs) -> Result<Outcome> {
    page::print(&completion.script())?;
    Ok(Outcome::Done)
}

fn run<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(command);
    // Not dropped: that would wait for a look-up of a name to time out.
    runtime.shutdown_background();
    outcome
}
